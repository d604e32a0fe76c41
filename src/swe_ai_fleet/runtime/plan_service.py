"""Plan sessions from settings: their limits, their tools, their model, where they are kept, and who hears of them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeVar

from swe_ai_fleet.agents.equipment import ANY_MODEL
from swe_ai_fleet.agents.plan_session import KeyValueSessions, PlanOutcome
from swe_ai_fleet.agents.sub_agents import SubAgentLimits
from swe_ai_fleet.domain.assignment import Assignment
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import MemoryScope, Outcome
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.in_process import MemoryKeyValue, MemoryLog
from swe_ai_fleet.learning.outcomes import planned_outcome
from swe_ai_fleet.memory.searching import FleetMemory
from swe_ai_fleet.orchestrator.execution_context import ExecutionDeps
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.plan_sessions import PlanSessions
from swe_ai_fleet.orchestrator.plans import Planner, Plans
from swe_ai_fleet.ports import KeyValue, Memories, WorkspaceProvider
from swe_ai_fleet.runtime.equipment import model_prices
from swe_ai_fleet.runtime.execution_tools import FleetView, TaskStarter
from swe_ai_fleet.runtime.factories import open_model, workspace_provider
from swe_ai_fleet.runtime.plan_tools import PlanEquipment
from swe_ai_fleet.runtime.tool_services import (
    make_sandbox,
    operator_tools,
    secret_mask,
    tool_access,
    with_isolation_level,
)
from swe_ai_fleet.settings import Settings

T = TypeVar("T")
MODEL_TIMEOUT_SECONDS = 60.0
"""How long a plan waits for a model server that is away: one that is restarted is back by then, and a person waits."""
_RESERVED = frozenset(
    {"list_executions", "show_execution", "start_task", "search_memory", "research", "call_planner", "call_verifier",
     "call_executor", "call_generator", "calculator", "python_executor", "read_webpage", "web_search",
     "search_wikipedia", "propose_approach", "ask_user", "request_tools", "final_answer", "builtin", "fleet",
     "registered", "sub_agents", "plan_session"}
)  # fmt: skip


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


class _NoFleet:
    """The `Fleet` of a program that only plans."""

    async def run(self, assignment: Assignment[T]) -> T:
        raise InvalidRequest("there is no fleet here", field="task", hint="`fleet up` starts one")


class TenantPlans:
    """The plan sessions of all tenants. No tenant reaches another's.

    Args:
        executions: Where their goals are executions.
        made: What a tenant's plans are made with.
    """

    def __init__(self, executions: Executions, made: Callable[[str], Planner]) -> None:
        self._executions = executions
        self._made = made
        self._planners: dict[str, Planner] = {}

    def planner(self, tenant: str) -> Planner:
        """What a tenant's plans are made with."""
        if tenant not in self._planners:
            self._planners[tenant] = self._made(tenant)
        return self._planners[tenant]

    def of(self, tenant: str) -> PlanSessions:
        """The plan sessions of a tenant."""
        return PlanSessions(self._executions, self.planner(tenant), tenant=tenant)


@asynccontextmanager
async def open_plans(settings: Settings) -> AsyncGenerator[PlanSessions]:
    """Plan sessions of a program, without a fleet, until the context ends; see `open_tenant_plans`."""
    async with open_tenant_plans(settings) as plans:
        yield plans.of(DEFAULT_TENANT)


@asynccontextmanager
async def open_tenant_plans(
    settings: Settings,
    *,
    executions: Executions | None = None,
    buckets: tuple[KeyValue, KeyValue] | None = None,
    memories: Memories | None = None,
    recorder: OutcomeRecorder | None = None,
    fleet: Callable[[str], FleetView | None] = lambda _: None,
    starter: Callable[[str], TaskStarter | None] = lambda _: None,
    repositories: WorkspaceProvider | None = None,
) -> AsyncGenerator[TenantPlans]:
    """The plan sessions of a service, driven with a model client of their own until the context ends.

    Args:
        settings: The model, the limits (those of chats), the servers of the web, the secrets.
        executions: Where goals are executions; None: in the memory of this process.
        buckets: Where sessions and their parts are kept; None: they end with the process.
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
        AsyncExitStack() as stack,
    ):
        sandbox = make_sandbox(here)
        if executions is None:
            log = MemoryLog()
            deps = ExecutionDeps(
                log=log,
                blobs=log,
                results=log,
                fleet=_NoFleet(),
                workspaces=workspace_provider(settings),
                model=model,
                owner=f"process-{secrets.token_hex(4)}",
            )
            executions = await stack.enter_async_context(Executions(deps))

        in_memory = MemoryKeyValue(), MemoryKeyValue()

        def made(tenant: str) -> Planner:
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
            return Planner(
                model=model,
                tools=equipment.open,
                store=KeyValueSessions(*(buckets or in_memory), tenant=tenant),
                limits=plan_limits(settings),
                sub_agents=SubAgentLimits(
                    depth=settings.sub_agent_depth,
                    number=settings.sub_agents,
                    each=Limits(max_iterations=5, max_tool_calls=12, timeout_seconds=settings.sub_agent_seconds),
                ),
                prices=prices.get(settings.model) or prices.get(ANY_MODEL),
                listener=Learning(recorder=recorder, tenant=tenant) if recorder else None,
                secrets=mask,
                audit_key=settings.audit_key.encode(),
            )

        plans = TenantPlans(executions, made)
        await stack.enter_async_context(executions.planning(Plans(plans.planner)))
        yield plans


def plan_limits(settings: Settings) -> Limits:
    """The limits of one search for an approach: those of chats."""
    return Limits(
        max_iterations=settings.chat_max_iterations,
        max_tool_calls=settings.chat_max_tool_calls,
        timeout_seconds=settings.chat_timeout_seconds,
    )
