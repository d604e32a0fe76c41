"""Plan sessions of a tenant: requests of callers become executions and control events; answers are read from them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.budget import RequestLimits
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import ApprovalAwaited, BreakpointsSet, ExecutionFinished
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.extensions.plans.drive import TenantPlanner
from swe_ai_fleet.extensions.plans.requests import (
    Approved,
    AwaitingApproval,
    PlanFailed,
    PlanRejected,
    PlanResult,
    checked_adjustment,
    checked_decision,
    checked_entities,
    checked_goal,
    checked_id,
    checked_repository,
    rejection,
)
from swe_ai_fleet.extensions.plans.session import GOOD_ENDS, INTERRUPTED, PlanSession, SessionCard, SessionStatus
from swe_ai_fleet.extensions.plans.store import approval_id, current_session, task_of
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.own_runs import enqueue_next

_PAUSES = (ApprovalAwaited, BreakpointsSet, ExecutionFinished)
"""The events after which the driver of a plan may be idle."""


class PlanSessions:
    """Accepts goals, decisions about proposals, and requests to run them, whichever replica drives the plan.

    A request outlives its caller, and its session keeps the result; a repeated request waits for the same answer.
    """

    def __init__(self, executions: Executions, planner: TenantPlanner, *, tenant: str) -> None:
        self._executions = executions
        self._planner = planner
        self._tenant = tenant

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
        """Search memory, research its gaps, and have an approach proposed; nothing with an effect runs.

        A repeated goal gets the same proposal until a person has decided about it. Another goal continues the
        session's conversation.

        Args:
            goal: The goal, in the person's words.
            selected_entities: Names that the person chose as relevant; may be empty.
            session_id: The session to continue; an unknown id starts a session, an empty one a session with a new id.
            repository: Path or URL of a repository to read; empty: the session's, or none.
            ref: Branch, tag or commit of it; empty: the one that is checked out.
            limits: The limits of this search for an approach; 0 in a field: the default.
            by: The caller's name; empty where callers cannot be told apart.

        Raises:
            InvalidRequest: Naming the field.
            PreconditionFailed: The session is being worked on.
            ResourceExhausted: The queue is full.
            Unavailable: Log or store do not answer.
        """
        goal, entities = checked_goal(goal), checked_entities(selected_entities)
        session_id = checked_id(session_id or uuid.uuid4().hex)
        repository, ref = checked_repository(repository, ref)
        requested = PlanSession(
            session_id=session_id,
            goal=goal,
            selected_entities=entities,
            repository=repository,
            ref=ref,
            started_by=by,
        )
        session, state = await self._read(session_id)
        if session is not None:
            session = await self._when_idle(session, state) if session.status.over else session
            requested = session.followed_by(requested)
            if requested.same_as(session) and (session.status.waiting or session.status is SessionStatus.PLANNING):
                return self._proposal(await self._when_idle(session, state))
            if session.status.working:
                raise _being_worked_on()
            if state is not None and not session.status.over:
                reason = "the person continued with something else"
                await self._executions.cancel(self._tenant, state.execution_id, reason)
        task = task_of(requested, self._tenant, (limits or RequestLimits()).over(self._planner.limits))
        try:
            await enqueue_next(self._executions, task)
        except AlreadyExists:
            raise _being_worked_on() from None
        return self._proposal(await self._when_idle(*await self._session(session_id)))

    async def approve(
        self,
        session_id: str,
        decision: ApprovalDecision | str,
        adjustment: str = "",
        *,
        proposal: int = 0,
        limits: RequestLimits | None = None,
        by: str = "",
    ) -> Approved | AwaitingApproval | PlanRejected | PlanFailed:
        """Decide about the proposal that waits, as `Executions.resolve` does. Adjusted, the model proposes again.

        A question that waits is answered in the same way, by `adjusted` and the answer, or ended by `rejected`.

        Args:
            session_id: The session of the proposal.
            decision: approved, rejected or adjusted.
            adjustment: The changes that the person wants, or the reason of a rejection.
            proposal: The number of the proposal that the person has read; 0: the pending one.
            limits: The limits of the search for another approach.
            by: The caller's name; empty where callers cannot be told apart. Who set the goal may only reject.

        Raises:
            NotFound: There is no such session.
            PreconditionFailed: No proposal is pending, or another one.
            InvalidRequest: There is no such decision, or an adjustment without text.
            PermissionDenied: The caller set the goal.
            Unavailable: Log or store do not answer.
        """
        decision, adjustment = checked_decision(decision), checked_adjustment(adjustment)
        if decision is ApprovalDecision.ADJUSTED and not adjustment:
            raise InvalidRequest("the adjustment is empty", field="adjustment")
        session, state = await self._session(checked_id(session_id))
        match session.status, decision:
            case SessionStatus.APPROVED, ApprovalDecision.APPROVED:
                return Approved(session_id=session_id)
            case SessionStatus.REJECTED, ApprovalDecision.REJECTED:
                return PlanRejected(session_id=session_id, message=rejection(session.rejection))
            case SessionStatus.PLANNING, ApprovalDecision.ADJUSTED if session.adjustment == adjustment:
                return self._proposal(await self._when_idle(session, state))
            case _ if not session.status.waiting:
                why = f": {session.error}" if session.error else ""
                raise PreconditionFailed(f"no proposal is pending in this session; its status is {session.status}{why}")
            case _ if proposal and proposal != session.proposals:
                raise PreconditionFailed(
                    f"proposal {session.proposals} is pending, not {proposal}",
                    field="proposal",
                    hint="look at it first",
                )
            case _:
                pass
        execution_id = await self._execution_of(session, state)
        resolution = ApprovalResolution(
            approval_id=approval_id(session), decision=decision, text=adjustment, caller=by, limits=limits
        )
        state = await self._executions.resolve(self._tenant, execution_id, resolution, by=by)
        match decision:
            case ApprovalDecision.APPROVED:
                return Approved(session_id=session_id)
            case ApprovalDecision.REJECTED:
                await self._executions.wait(self._tenant, execution_id)
                return PlanRejected(session_id=session_id, message=rejection(self._planner.clean(adjustment)))
            case ApprovalDecision.ADJUSTED:
                session = current_session(session, state, self._planner.clean)
                return self._proposal(await self._when_idle(session, state))

    async def continue_plan(self, session_id: str, *, limits: RequestLimits | None = None, by: str = "") -> PlanResult:
        """Run the approved approach, from the exact point of the proposal on. A repeated request gets the same result;
        only where the model server failed does the run continue, after the calls that were made.

        `limits` are those of the run; a run that has begun keeps its own. `by` is the caller's name.

        Raises:
            NotFound: There is no such session.
            InvalidRequest: The id is malformed.
            PreconditionFailed: Its approach is not approved.
            Unavailable: Log or store do not answer.
        """
        session, state = await self._session(checked_id(session_id))
        if session.status is SessionStatus.APPROVED:
            execution_id = await self._execution_of(session, state)
            state = await self._executions.carry_on(self._tenant, execution_id, limits, by=by)
            session = current_session(session, state, self._planner.clean)
        if session.status is SessionStatus.EXECUTING:
            session = await self._when_idle(session, state)
        elif session.status is not SessionStatus.COMPLETED and session.error != INTERRUPTED:
            raise PreconditionFailed(f"there is no approved approach to carry out; the session is {session.status}")
        good = "completed" if session.stop_reason in GOOD_ENDS else "limit_reached"
        status = good if session.status is SessionStatus.COMPLETED else "error"
        return PlanResult.of(session, status, self._planner.clean)

    async def session(self, session_id: str) -> PlanSession:
        """The current session. Raises NotFound, InvalidRequest, Unavailable."""
        session, _ = await self._session(checked_id(session_id))
        return session

    async def sessions(self) -> tuple[SessionCard, ...]:
        """The cards of all sessions, the most recently updated first. Raises Unavailable."""
        return await self._planner.store.listed()

    async def _session(self, session_id: str) -> tuple[PlanSession, ExecutionState | None]:
        session, state = await self._read(session_id)
        if session is None:
            raise NotFound(f"there is no session {session_id[:100]!r}", field="session_id")
        return session, state

    async def _read(self, session_id: str) -> tuple[PlanSession | None, ExecutionState | None]:
        """A session, and the execution of its goal; None for an execution that the log never had, or has no longer.

        The log is read before the document, which may be newer.
        """
        try:
            state = await self._executions.latest(self._tenant, session_id, TaskKind.PLAN)
        except NotFound:
            state = None
        stored = await self._planner.store.get(session_id)
        if stored is not None and (state is None or state.task.attempt < stored.attempt):
            try:
                execution_id = task_of(stored, self._tenant, self._planner.limits).execution_id
                state = await self._executions.get(self._tenant, execution_id)
            except NotFound:
                if stored.status.working:
                    # No driver continues it.
                    stored = replace(stored, status=SessionStatus.ERROR, error=INTERRUPTED)
                return stored, None
        return current_session(stored, state, self._planner.clean) if state is not None else None, state

    async def _execution_of(self, session: PlanSession, state: ExecutionState | None) -> str:
        """The execution id of a session that waits for a person; a session without an execution gets one."""
        if state is not None:
            return state.execution_id
        execution_id = await self._executions.enqueue(task_of(session, self._tenant, self._planner.limits))
        if session.status.waiting:
            await self._next_pause(execution_id, 0)
        return execution_id

    async def _when_idle(self, session: PlanSession, state: ExecutionState | None) -> PlanSession:
        """Wait until a session is idle, which is when it waits for a person or has ended; the session then."""
        while state is not None and not state.status.terminal and (session.status.working or session.status.over):
            await self._next_pause(state.execution_id, state.last_sequence + 1)
            session, state = await self._session(session.session_id)
        return session

    async def _next_pause(self, execution_id: str, sequence: int) -> None:
        async with aclosing(self._executions.watch(self._tenant, execution_id, sequence)) as events:
            async for stored in events:
                if isinstance(stored.event.body, _PAUSES):
                    return

    def _proposal(self, session: PlanSession) -> AwaitingApproval | PlanFailed:
        if not session.status.over:
            return AwaitingApproval.of(session)
        return PlanFailed(session_id=session.session_id, error=session.error)


def _being_worked_on() -> PreconditionFailed:
    return PreconditionFailed(
        "the session is being worked on", field="session_id", hint="wait for the answer, or cancel its execution"
    )
