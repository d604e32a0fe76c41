"""Drives plans: proposal, decision, run. The log records the progress; a session's document is the checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import structlog

from swe_ai_fleet.agents.sub_agents.exploring import sub_agents_used
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits
from swe_ai_fleet.domain.budget import Limits, Prices
from swe_ai_fleet.domain.errors import Fenced, FleetError, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.event import BreakpointsSet, ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import WorkOutcome
from swe_ai_fleet.domain.text import now, well_formed
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.extensions.plans.planning_run import FAULTS, PlanningRun, RunEnd
from swe_ai_fleet.extensions.plans.requests import rejection
from swe_ai_fleet.extensions.plans.session import (
    GOOD_ENDS,
    PlanSession,
    PlanTools,
    SessionStatus,
    outcome_of,
)
from swe_ai_fleet.extensions.plans.store import (
    KeyValueSessions,
    approval_request,
    continued,
    current_session,
    run_name,
    tool_results,
)
from swe_ai_fleet.orchestrator.approvals import PAUSE, control
from swe_ai_fleet.orchestrator.execution_context import Ending, ExecutionContext, ExecutionDeps
from swe_ai_fleet.orchestrator.own_runs import OwnRuns
from swe_ai_fleet.ports import ChatModel, ModelSessions, SecretMask
from swe_ai_fleet.tools.secrets import Secrets

_ENDINGS = {
    SessionStatus.COMPLETED: ExecutionStatus.COMPLETED,
    SessionStatus.REJECTED: ExecutionStatus.REJECTED,
    SessionStatus.ERROR: ExecutionStatus.FAILED,
}
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class TenantPlanner:
    """The model, tools and limits of a tenant's plans.

    Attributes:
        model: The model that plans; it plays the sub-agents too.
        tools: Opens the workspace and the tools of a session for one request.
        store: The sessions of the tenant.
        limits: The limits of one search for an approach; the run of an approved one has those of a task.
        sub_agents: The limits of all sub-agents of one session.
        prices: What the model costs; None: usage has no cost.
        record: Stores the outcome of each goal; its FleetErrors are logged and change nothing.
        secrets: Replaces secrets in proposals and answers of the model before they are stored or shown.
        audit_key: The key of the digests of full arguments.
    """

    model: ChatModel
    tools: Callable[[PlanSession], AbstractAsyncContextManager[PlanTools]]
    store: KeyValueSessions
    limits: Limits
    sub_agents: SubAgentLimits = field(default_factory=SubAgentLimits)
    prices: Prices | None = None
    record: Callable[[WorkOutcome], Awaitable[object]] | None = None
    secrets: SecretMask = field(default_factory=Secrets)
    audit_key: bytes = b""

    def clean(self, text: str) -> str:
        """A text without secrets and lone surrogates."""
        return self.secrets(well_formed(text))

    async def claimed(self, state: ExecutionState) -> PlanSession:
        """The current session, stored as a new revision: an earlier driver can store it no more. Raises as `keep`."""
        return await self.keep(current_session(await self.store.get(state.task.task_id), state, self.clean))

    async def keep(self, session: PlanSession) -> PlanSession:
        """Store the session as its next revision. Raises Fenced where another driver stored it, FleetError."""
        at = now()
        revised = replace(session, revision=session.revision + 1, started_at=session.started_at or at, updated_at=at)
        try:
            await self.store.put(revised)
        except PreconditionFailed as fault:
            raise Fenced(fault.message) from fault
        return revised


class PlanDriver:
    """Drives the plans of all tenants; `planner` gives the planner of a tenant."""

    def __init__(self, planner: Callable[[str], TenantPlanner]) -> None:
        self._planner = planner

    def drive(self, *, work: ExecutionContext) -> PlanDrive:
        """Drive the plan of an execution; what an earlier driver finished is not repeated."""
        return PlanDrive(self._planner(work.task.tenant), work)

    async def ended(self, deps: ExecutionDeps, state: ExecutionState, ending: Ending) -> None:
        """Store how a goal ended, in its session and as an outcome to learn from. Raises Fenced, Unavailable."""
        planner = self._planner(state.task.tenant)
        try:
            session = current_session(await planner.store.get(state.task.task_id), state, planner.clean)
            reason = planner.clean(ending.error)
            if not session.status.over:
                if ending.status is ExecutionStatus.CANCELLED:
                    reason = f"the goal was cancelled: {reason}"
                runs = OwnRuns(deps=deps, task=state.task, audit_key=planner.audit_key)
                session = await _abandoned(runs, session, reason)
                ended = session.interrupted() if session.status is SessionStatus.EXECUTING else session.closed(reason)
                await planner.keep(replace(ended, status=SessionStatus.ERROR, error=reason))
        except (PreconditionFailed, ResourceExhausted) as fault:
            # The session cannot be read, or is too long; the execution ends all the same.
            _log.warning("plan_session.end_not_kept", session=state.task.task_id, reason=fault.message)
            return
        if planner.record is None:
            return
        try:
            tenant = state.task.tenant
            await planner.record(outcome_of(session, ending.status, session.rejection or reason, tenant=tenant))
        except FleetError as error:
            _log.warning("plan_session.outcome_not_recorded", session=session.session_id, reason=error.message)


class PlanDrive:
    """Drives one plan to its end; a `KindDrive`."""

    def __init__(self, planner: TenantPlanner, work: ExecutionContext) -> None:
        self._planner = planner
        self._work = work
        self._runs = OwnRuns(deps=work.deps, task=work.task, audit_key=planner.audit_key, signing=work.runs.signing)
        self._steered = asyncio.Event()
        self.waits = False
        """Whether the plan is approved and waits for the request to run it."""

    def steered(self) -> None:
        """Called when a control event arrives; the event itself is in the log."""
        self._steered.set()

    async def run(self) -> Ending:
        """Drive the plan to its end and return that. Raises FleetError where the plan fails, Fenced."""
        approvals = self._work.runs.approvals
        session = await self._planner.claimed(self._work.known)
        while not session.status.over:
            match session.status:
                case SessionStatus.PLANNING:
                    session = await self._planner.keep(await self._proposed(session))
                case SessionStatus.EXECUTING:
                    session = await self._planner.keep(await self._executed(session))
                    if session.status is SessionStatus.APPROVED:
                        hold = BreakpointsSet(action=PAUSE, by=run_name(session))
                        await self._work.deps.log.tell(control(self._work.task), hold)
                case _:
                    if session.status.waiting:
                        await approvals.ask(approval_request(session))
                    else:
                        await self._until_continued()
                    current = current_session(session, await approvals.refresh(), self._planner.clean)
                    session = await self._planner.keep(current)
        error = rejection(session.rejection) if session.status is SessionStatus.REJECTED else session.error
        usage = (await approvals.refresh()).spent
        return Ending(status=_ENDINGS[session.status], error=error, usage=usage)

    async def _until_continued(self) -> None:
        self.waits = True
        while not continued(await self._work.runs.approvals.refresh()):
            await self._steered.wait()
            self._steered.clear()
        self.waits = False

    async def _proposed(self, session: PlanSession) -> PlanSession:
        """The session after its request for an approach."""
        try:
            async with self._recorded(session) as (run, results):
                end = await (run.adjust() if session.adjustment else run.plan(results))
        except _NoTools as error:
            return replace(session, status=SessionStatus.ERROR, error=self._planner.clean(str(error)))
        session, proposed = replace(end.session, error=""), end.proposed
        if proposed is None:
            detail = f": {end.answer}" if end.answer.strip() and not end.error else ""
            error = self._planner.clean(end.error or f"the model proposed nothing{detail}")
            return replace(session, status=SessionStatus.ERROR, error=error)
        if proposed.question:
            question = self._planner.clean(proposed.question)
            return replace(session, status=SessionStatus.AWAITING_ANSWER, question=question)
        return replace(
            session,
            status=SessionStatus.AWAITING_APPROVAL,
            approach=self._planner.clean(proposed.approach),
            reasoning=self._planner.clean(proposed.reasoning),
            proposals=session.proposals + 1,
        )

    async def _executed(self, session: PlanSession) -> PlanSession:
        """The session after the run of the approved approach; still `approved` where the model server failed."""
        try:
            async with self._recorded(session) as (run, _):
                end: RunEnd = await run.run()
        except _NoTools as error:
            return replace(session, status=SessionStatus.APPROVED, error=self._planner.clean(str(error)))
        error = "" if end.session.stop_reason in GOOD_ENDS else end.error
        # The conversation is complete, so the next request continues after the calls that were made.
        status = SessionStatus.APPROVED if end.session.stop_reason in FAULTS else SessionStatus.COMPLETED
        return replace(end.session, status=status, answer=end.answer, error=error)

    @asynccontextmanager
    async def _recorded(self, session: PlanSession) -> AsyncGenerator[tuple[PlanningRun, Mapping[str, ToolResult]]]:
        """The agent of the session's request, and by operation the results from before its first message.

        Raises _NoTools where its tools cannot be opened.
        """
        planner, model = self._planner, self._planner.model
        default = Limits() if session.status is SessionStatus.EXECUTING else planner.limits
        if isinstance(model, ModelSessions):
            # One server for the whole request: it has the prompt cached.
            model = model.session(f"plan-{session.session_id}", tenant=self._work.task.tenant)
        async with AsyncExitStack() as stack:
            try:
                tools = await stack.enter_async_context(planner.tools(session))
            except FleetError as error:
                raise _NoTools(str(error)) from error
            record, earlier = await stack.enter_async_context(self._runs.recorded(run_name(session)))
            run = PlanningRun(
                session,
                record,
                earlier,
                model=model,
                tools=tools,
                limits=session.limits.over(default),
                sub_agents=planner.sub_agents,
                mask=planner.clean,
                prices=planner.prices,
            )
            results: Mapping[str, ToolResult] = {}
            if earlier.generation:
                results = await tool_results(self._work.deps.log, self._work.task, run_name(session))
            yield run, results


class _NoTools(Exception):
    """The workspace or the tools of a session cannot be opened."""


async def _abandoned(runs: OwnRuns, session: PlanSession, reason: str) -> PlanSession:
    """The session with the work that was done for its request, which is not continued."""
    if not session.status.working:
        return session
    run = await runs.abandoned(run_name(session), reason)
    abandoned = session.with_run(run)
    return replace(
        abandoned, usage=abandoned.usage + run.usage, sub_agents=abandoned.sub_agents + sub_agents_used(run.steps)
    )
