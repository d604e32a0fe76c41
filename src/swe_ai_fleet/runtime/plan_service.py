"""Plan sessions from settings, their requests outliving the calls that made them.

Settings say their limits, their tools, their model, and who hears of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, Self, TypeVar, cast

import structlog

from swe_ai_fleet.agents.equipment import ANY_MODEL
from swe_ai_fleet.agents.plan_session import (
    Approved,
    AwaitingApproval,
    KeyValueSessions,
    OutcomeListener,
    PlanFailed,
    PlanOutcome,
    PlanResult,
    PlanSession,
    PlanSessions,
    Rejected,
    RequestLimits,
    RunLog,
    SessionCard,
    SessionStatus,
    SessionStore,
)
from swe_ai_fleet.agents.sub_agents import SubAgentLimits
from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.errors import FleetError, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.memory import MemoryScope
from swe_ai_fleet.domain.outcome import Outcome
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.following import in_background
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.learning.outcomes import planned_outcome
from swe_ai_fleet.memory.searching import FleetMemory
from swe_ai_fleet.ports import EventLog, KeyValue, Memories, Replicas, WorkspaceProvider
from swe_ai_fleet.runtime.equipment import model_prices
from swe_ai_fleet.runtime.execution_tools import FleetView, TaskStarter
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.runtime.plan_tools import PlanEquipment
from swe_ai_fleet.runtime.tool_services import (
    make_sandbox,
    operator_tools,
    secret_mask,
    tool_access,
    with_isolation_level,
)
from swe_ai_fleet.settings import Settings

R = TypeVar("R")
AT_ONCE = 32
_log = structlog.get_logger(__name__)
POLL_SECONDS = 1.0
MODEL_TIMEOUT_SECONDS = 60.0
"""How long a plan waits for a model server that is away: one that is restarted is back by then, and a person waits."""
_RESERVED = frozenset(
    {"list_executions", "show_execution", "start_task", "search_memory", "research", "call_planner", "call_verifier",
     "call_executor", "call_generator", "calculator", "python_executor", "read_webpage", "web_search",
     "search_wikipedia", "propose_approach", "ask_user", "request_tools", "final_answer", "builtin", "fleet",
     "registered", "sub_agents", "plan_session"}
)  # fmt: skip


class PlanService:
    """Takes requests for plan sessions; an async context manager.

    A request outlives its caller, and its session keeps the result. The same request again, while the first one runs
    here, waits for the same answer. Leaving the context cancels running requests.

    Args:
        sessions: Runs the requests.
        at_once: So many at a time; more are refused.
    """

    def __init__(self, sessions: PlanSessions, *, at_once: int = AT_ONCE) -> None:
        self._sessions = sessions
        self._at_once = at_once
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._again_at_work: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        running = [*self._again_at_work, *self._running.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def execute_plan(
        self,
        goal: str,
        selected_entities: Sequence[str] = (),
        session_id: str = "",
        *,
        repository: str = "",
        ref: str = "",
        limits: RequestLimits | None = None,
        by: str = "",
    ) -> AwaitingApproval | PlanFailed:
        """See `PlanSessions.execute_plan`. Raises ResourceExhausted too."""
        key = ("execute", goal, tuple(selected_entities), repository, ref, session_id or object())
        return await self._outliving(
            key,
            lambda: self._sessions.execute_plan(
                goal, selected_entities, session_id or None, repository=repository, ref=ref, limits=limits, by=by
            ),
        )

    async def approve(
        self,
        session_id: str,
        decision: str,
        adjustment: str = "",
        *,
        proposal: int = 0,
        limits: RequestLimits | None = None,
        by: str = "",
    ) -> Approved | AwaitingApproval | Rejected | PlanFailed:
        """See `PlanSessions.approve`. Raises ResourceExhausted too."""
        key = ("approve", session_id, decision, adjustment, proposal, by)
        return await self._outliving(
            key,
            lambda: self._sessions.approve(session_id, decision, adjustment, proposal=proposal, limits=limits, by=by),
        )

    async def continue_plan(self, session_id: str, *, limits: RequestLimits | None = None) -> PlanResult:
        """See `PlanSessions.continue_plan`. Raises ResourceExhausted too."""
        return await self._outliving(
            ("continue", session_id), lambda: self._sessions.continue_plan(session_id, limits=limits)
        )

    async def session(self, session_id: str) -> PlanSession:
        """A session as it stands. Raises NotFound, Unavailable."""
        return await self._sessions.session(session_id)

    def working(self, session: PlanSession) -> bool:
        """Whether a request of it runs now, here or elsewhere."""
        return self._sessions.working(session)

    async def sessions(self) -> tuple[SessionCard, ...]:
        """The cards of all, the one that was worked on last first. Raises Unavailable."""
        return await self._sessions.sessions()

    async def take_up(self) -> None:
        """Begin to go on with what ended processes left, as if it were asked for again. Raises Unavailable."""
        for card in await self.sessions():
            if card.status.working:
                again = asyncio.create_task(self._again(card.session_id), name=f"plan {card.session_id}")
                self._again_at_work.add(again)
                again.add_done_callback(self._again_at_work.discard)

    async def _again(self, session_id: str) -> None:
        """Make the last request of a session that nobody works on once more; a fault is that of this session alone."""
        try:
            await self._request_again(await self.session(session_id))
        except FleetError as fault:
            _log.warning("plan_session.not_taken_up", session=session_id, reason=fault.message)

    async def _request_again(self, session: PlanSession) -> None:
        """Whoever asks for the same meanwhile waits for the same answer."""
        if not session.requests or self.working(session):
            return
        session_id = session.session_id
        if session.status is SessionStatus.EXECUTING:
            await self.continue_plan(session_id)
        elif session.adjustment:
            await self.approve(session_id, ApprovalDecision.ADJUSTED, session.adjustment)
        else:
            entities, repository, ref = session.selected_entities, session.repository, session.ref
            await self.execute_plan(
                session.goal, entities, session_id, repository=repository, ref=ref, by=session.started_by
            )

    async def _outliving(self, key: Hashable, work: Callable[[], Awaitable[R]]) -> R:
        task = cast("asyncio.Task[R] | None", self._running.get(key))
        if task is None:
            if len(self._running) >= self._at_once:
                raise ResourceExhausted(f"{len(self._running)} plans are in progress; try again in a moment")
            task = asyncio.ensure_future(_awaited(work))
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and (caller := asyncio.current_task()) is not None and not caller.cancelling():
                raise Unavailable("the service is shutting down; look at the session after its restart") from None
            raise

    def _ended(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        self._running.pop(key, None)
        # Whoever waits has the fault too; without anybody it would be lost.
        if not task.cancelled() and (fault := task.exception()) is not None and not isinstance(fault, FleetError):
            _log.error("plan.request_failed", exc_info=fault)


class TenantPlanServices:
    """The plan services of all tenants; an async context manager. No tenant reaches another's sessions.

    Args:
        make: Makes the plan sessions of a tenant.
    """

    def __init__(self, make: Callable[[str], PlanSessions]) -> None:
        self._make = make
        self._plans: dict[str, PlanService] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for service in self._plans.values():
            await service.__aexit__(*exc)

    def of(self, tenant: str) -> PlanService:
        """The plan service of a tenant."""
        if tenant not in self._plans:
            self._plans[tenant] = PlanService(self._make(tenant))
        return self._plans[tenant]


async def _awaited(work: Callable[[], Awaitable[R]]) -> R:
    return await work()


class OutcomeRecorder(Protocol):
    """Where outcomes are learned from; the client of the context service is one."""

    async def record_outcome(self, outcome: Outcome) -> Outcome:
        """Keep an outcome; as it is kept. Raises InvalidRequest, Unavailable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """An `OutcomeListener` that hands outcomes of plan sessions to whoever learns from them."""

    recorder: OutcomeRecorder
    tenant: str = DEFAULT_TENANT

    async def on_outcome(self, outcome: PlanOutcome) -> None:
        """Take an outcome in. Raises InvalidRequest, Unavailable."""
        ended_at = datetime.now(UTC).isoformat()
        await self.recorder.record_outcome(planned_outcome(outcome, ended_at=ended_at, tenant=self.tenant))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBuckets:
    """Where plan sessions are kept, for all replicas."""

    sessions: KeyValue
    parts: KeyValue

    def store(self, tenant: str) -> SessionStore:
        """The sessions of a tenant."""
        return KeyValueSessions(self.sessions, self.parts, tenant=tenant)

    async def tenants(self) -> set[str]:
        """Those who have sessions. Raises Unavailable."""
        return {entry.key.rpartition(".")[0] for entry in await self.sessions.entries()}


async def _take_up(plans: TenantPlanServices, buckets: PlanBuckets, replicas: Replicas) -> None:
    """Go on with what processes left that ended: those before this one, then each whose lease ends."""
    known: set[str] | None = None
    while True:
        alive = set(replicas.alive())
        if replicas.me in alive and (known is None or known - alive):
            try:
                services = [plans.of(tenant) for tenant in await buckets.tenants()]
                for service in services:
                    await service.take_up()
                known = alive
            except Unavailable as error:
                _log.warning("plan_session.not_looked_for", reason=error.message)
        elif known is not None:
            known |= alive
        await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def open_plans(settings: Settings) -> AsyncGenerator[PlanService]:
    """Plan sessions of a program, without a fleet, until the context ends; see `open_tenant_plan_services`."""
    async with open_tenant_plan_services(settings) as plans:
        yield plans.of(DEFAULT_TENANT)


@asynccontextmanager
async def open_tenant_plan_services(
    settings: Settings,
    *,
    buckets: PlanBuckets | None = None,
    log: EventLog | None = None,
    replicas: Replicas | None = None,
    memories: Memories | None = None,
    recorder: OutcomeRecorder | None = None,
    fleet: Callable[[str], FleetView | None] = lambda _: None,
    starter: Callable[[str], TaskStarter | None] = lambda _: None,
    repositories: WorkspaceProvider | None = None,
) -> AsyncGenerator[TenantPlanServices]:
    """The plan sessions of a service, with a model client of their own, until the context ends.

    Args:
        settings: The model, the limits (those of chats), the servers of the web, the secrets.
        buckets: Where sessions are kept; None: they end with the process.
        log: Where what their agents do is recorded; None: in the memory of this process.
        replicas: Who else may be at work on them; what one of them left when its process ended is taken up here. None:
            nobody.
        memories: What memory is asked; None: nothing is remembered.
        recorder: Who learns how sessions ended; None: nobody.
        fleet: Where a tenant's executions are looked at.
        starter: Starts a tenant's tasks that an approved plan asks for.
        repositories: Where repositories that goals are about are looked into; None: none are.

    Raises:
        InvalidRequest: No model server is configured, or a setting is malformed.
        PreconditionFailed: The sandbox of the settings cannot be had here.
    """
    here = await with_isolation_level(settings)
    access, mask, prices = tool_access(settings), secret_mask(settings), model_prices(settings)
    timeout = min(settings.model_patience_seconds, MODEL_TIMEOUT_SECONDS)
    async with (
        open_model(settings.model_copy(update={"model_patience_seconds": timeout})) as model,
        operator_tools(here, settings.home / "plans" / "mcp", reserved=_RESERVED) as mcp,
    ):
        sandbox = make_sandbox(here)
        runs = RunLog(log=log or MemoryLog(), audit_key=settings.audit_key.encode())
        if replicas is not None:
            runs = replace(runs, me=replicas.me, alive=replicas.alive)

        def made(tenant: str) -> PlanSessions:
            listener: OutcomeListener | None = Learning(recorder=recorder, tenant=tenant) if recorder else None
            scope = MemoryScope(tenant=tenant)
            equipment = PlanEquipment(
                home=settings.home,
                sandbox=sandbox,
                builtin=access.builtin,
                mask=mask,
                remembering=partial(FleetMemory, memories, scope, mask=mask) if memories is not None else None,
                fleet=fleet(tenant),
                starter=starter(tenant),
                plugins=access.plugins,
                mcp=mcp,
                repositories=repositories,
                tenant=tenant,
            )
            return PlanSessions(
                model=model,
                tools=equipment.open,
                store=buckets.store(tenant) if buckets is not None else None,
                runs=replace(runs, tenant=tenant),
                limits=plan_limits(settings),
                sub_agents=SubAgentLimits(
                    depth=settings.sub_agent_depth,
                    number=settings.sub_agents,
                    each=Limits(max_iterations=5, max_tool_calls=12, timeout_seconds=settings.sub_agent_seconds),
                ),
                prices=prices.get(settings.model) or prices.get(ANY_MODEL),
                listener=listener,
                mask=mask,
            )

        async with TenantPlanServices(made) as plans, AsyncExitStack() as stack:
            if buckets is not None and replicas is not None:
                await stack.enter_async_context(in_background(_take_up(plans, buckets, replicas), name="plan sessions"))
            yield plans


def plan_limits(settings: Settings) -> Limits:
    """The limits of one search for an approach: those of chats."""
    return Limits(
        max_iterations=settings.chat_max_iterations,
        max_tool_calls=settings.chat_max_tool_calls,
        timeout_seconds=settings.chat_timeout_seconds,
    )
