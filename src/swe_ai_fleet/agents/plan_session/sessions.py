"""The engine of planning with a person: propose, decide, carry out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from swe_ai_fleet.agents.plan_session.planning_run import FAULTS, PLANNER_LIMITS, PlanningRun, PlanTools, RunEnd
from swe_ai_fleet.agents.plan_session.requests import (
    RequestLimits,
    checked_adjustment,
    checked_decision,
    checked_entities,
    checked_goal,
    checked_id,
    checked_limits,
    checked_repository,
)
from swe_ai_fleet.agents.plan_session.run_log import GoalCancelled, RunLog, goal_cancelled
from swe_ai_fleet.agents.plan_session.session import (
    Approved,
    AwaitingApproval,
    Ending,
    OutcomeListener,
    PlanFailed,
    PlanOutcome,
    PlanResult,
    PlanSession,
    Rejected,
    SessionCard,
    SessionStatus,
    rejection,
)
from swe_ai_fleet.agents.plan_session.store import SessionsInMemory, SessionStore
from swe_ai_fleet.agents.recorded_run import run_finished
from swe_ai_fleet.agents.sub_agents.exploring import sub_agents_used
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits
from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.budget import Limits, Prices
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound, PermissionDenied, PreconditionFailed
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import ChatModel, ModelSessions, SecretMask
from swe_ai_fleet.tools.secrets import Secrets

_log = structlog.get_logger(__name__)
_GOOD_ENDS = frozenset({StopReason.FINAL_ANSWER, StopReason.NO_TOOL_CALLS})
_ENDED = {
    ExecutionStatus.COMPLETED: SessionStatus.COMPLETED,
    ExecutionStatus.REJECTED: SessionStatus.REJECTED,
}
_OPEN = frozenset(SessionStatus) - {*_ENDED.values(), SessionStatus.ERROR}
_INTERRUPTED = (
    "its process ended while the approved approach was being carried out; what it did stands in the audit. "
    "Set the goal again to continue."
)


class PlanSessions:
    """Plans goals, waits for decisions, carries out what was approved.

    Args:
        model: The model that plans; it plays the sub-agents too.
        tools: Opens what a session works with for the time of one request.
        store: Keeps the sessions between requests; without one, they end with the process.
        runs: Where what requests do is recorded; without it, in the memory of this process.
        limits: Of one search for an approach.
        task_limits: Of the run of an approved one.
        sub_agents: Of the sub-agents of one session.
        prices: What the model costs; a `max_cost` needs them.
        listener: Hears of each session that ended.
        mask: Replaces secrets in what the model proposed and answered, before it is kept or shown.
        new_id: Makes ids for sessions that come without one.
        clock: What time it is.

    Raises:
        InvalidRequest: A `max_cost` without prices, naming it.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        tools: Callable[[PlanSession], AbstractAsyncContextManager[PlanTools]],
        store: SessionStore | None = None,
        runs: RunLog | None = None,
        limits: Limits = PLANNER_LIMITS,
        task_limits: Limits | None = None,
        sub_agents: SubAgentLimits | None = None,
        prices: Prices | None = None,
        listener: OutcomeListener | None = None,
        mask: SecretMask | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._model = model
        self._tools = tools
        self._store = store or SessionsInMemory()
        self._runs = runs or RunLog()
        self._sub_agents = sub_agents or SubAgentLimits()
        self._limits, self._prices = checked_limits(limits, self._sub_agents, prices), prices
        self._task_limits = checked_limits(task_limits or Limits(), self._sub_agents, prices)
        self._listener = listener
        self._secrets = mask or Secrets()
        self._new_id = new_id
        self._clock = clock
        self._at_work: set[str] = set()

    async def execute_plan(
        self,
        goal: str,
        selected_entities: Sequence[str] = (),
        session_id: str | None = None,
        *,
        repository: str = "",
        ref: str = "",
        limits: RequestLimits | None = None,
        by: str = "",
    ) -> AwaitingApproval | PlanFailed:
        """Search memory, research its gaps, and have an approach proposed; nothing with an effect runs.

        The same goal again, while its proposal waits, gives that proposal; where the process ended that worked on it,
        the work goes on. Another goal goes on in the session's conversation.

        Args:
            goal: What is to be reached.
            selected_entities: Names that the person chose as relevant; none is valid.
            session_id: A session to go on with; an unknown or absent one starts a new one.
            repository: Path or URL of a repository to look into; empty: the session's, or none.
            ref: Branch, tag or commit of it; empty: what is checked out.
            limits: Of this search for an approach; what they leave out has the default.
            by: Who asks; empty where callers cannot be told apart.

        Raises:
            InvalidRequest: Naming the field.
            PreconditionFailed: The session is being worked on.
            Unavailable: Log or store do not answer; the session goes on when it is asked again.
        """
        goal, entities = checked_goal(goal), checked_entities(selected_entities)
        session_id = checked_id(session_id or self._new_id())
        repository, ref = checked_repository(repository, ref)
        wanted = PlanSession(
            session_id=session_id,
            goal=goal,
            selected_entities=entities,
            repository=repository,
            ref=ref,
            limits=limits or RequestLimits(),
            started_by=by,
        )
        with self._alone(session_id):
            known = await self._store.get(session_id)
            if known is None:
                return await self._propose(await self._begin(wanted, SessionStatus.PLANNING))
            if known.followed_by(wanted).same_as(known):
                if known.status.waiting:
                    return AwaitingApproval.of(known)
                if known.status is SessionStatus.PLANNING and known.requests:
                    return await self._propose(await self._take(known))
            reason = "the person continued with something else"
            if known.status.working:
                known = await self._abandoned(await self._take(known), reason)
            if known.status in _OPEN:
                await self._runs.end(known, ExecutionStatus.CANCELLED, reason)
                await self._notify(known, ExecutionStatus.CANCELLED, reason)
            return await self._propose(await self._begin(known.followed_by(wanted), SessionStatus.PLANNING))

    async def approve(
        self,
        session_id: str,
        decision: ApprovalDecision | str,
        adjustment: str = "",
        *,
        proposal: int = 0,
        limits: RequestLimits | None = None,
        by: str = "",
    ) -> Approved | AwaitingApproval | Rejected | PlanFailed:
        """Decide about the proposal that waits. Adjusted, it goes back to the model, which proposes again.

        A question that waits is answered in the same way, by `adjusted` and the answer, or ended by `rejected`.

        The same adjustment again goes on where a process ended that worked on it.

        Args:
            session_id: Whose proposal.
            decision: approved, rejected or adjusted.
            adjustment: What is to be different, or why it is rejected.
            proposal: The number of the one that the person has seen; 0: whichever waits.
            limits: Of the search for another approach.
            by: Who decides; empty where callers cannot be told apart. Who set the goal may only reject.

        Raises:
            NotFound: There is no such session.
            PreconditionFailed: Nothing waits there, or another proposal, or it is being worked on.
            InvalidRequest: There is no such decision, or an adjustment without text.
            PermissionDenied: They set the goal themselves.
            Unavailable: Log or store do not answer.
        """
        decision, adjustment = checked_decision(decision), checked_adjustment(adjustment)
        if decision is ApprovalDecision.ADJUSTED and not adjustment:
            raise InvalidRequest("the adjustment is empty", field="adjustment")
        session_id = checked_id(session_id)
        with self._alone(session_id):
            session = await self.session(session_id)
            _check_decider(session, decision, by)
            match session.status, decision:
                case SessionStatus.APPROVED, ApprovalDecision.APPROVED:
                    return Approved(session_id=session_id)
                case SessionStatus.REJECTED, ApprovalDecision.REJECTED:
                    return Rejected(session_id=session_id, message=rejection(session.rejection))
                case SessionStatus.PLANNING, ApprovalDecision.ADJUSTED if session.adjustment == adjustment:
                    return await self._propose(await self._take(session))
                case _ if session.status.working and self._runs.elsewhere(session):
                    raise being_worked_on()
                case _:
                    pass
            if not session.status.waiting:
                raise PreconditionFailed(f"no proposal is pending in this session; its status is {session.status}")
            if session.question and decision is ApprovalDecision.APPROVED:
                raise PreconditionFailed(
                    "the model asks a question; there is no proposal yet",
                    field="decision",
                    hint="adjusted, and the answer",
                )
            if proposal and proposal != session.proposals:
                raise PreconditionFailed(
                    f"proposal {session.proposals} is pending, not {proposal}",
                    field="proposal",
                    hint="look at it first",
                )
            try:
                await self._runs.check(session)
            except GoalCancelled as cancelled:
                await self._cancelled(session, cancelled)
                raise
            await self._runs.decided(session, decision, adjustment, by)
            match decision:
                case ApprovalDecision.APPROVED:
                    await self._save(replace(session, status=SessionStatus.APPROVED, decided_by=by))
                    return Approved(session_id=session_id)
                case ApprovalDecision.REJECTED:
                    return await self._rejected(session, adjustment)
                case ApprovalDecision.ADJUSTED:
                    session = replace(session, adjustment=adjustment, limits=limits or RequestLimits())
                    return await self._propose(await self._begin(session, SessionStatus.PLANNING))

    async def continue_plan(self, session_id: str, *, limits: RequestLimits | None = None) -> PlanResult:
        """Carry out what was approved, from the exact point of the proposal on, or from where a process that worked on
        it ended. Again gives the same result.

        `limits` are those of the run; one that has begun keeps its own.

        Raises:
            NotFound: There is no such session.
            InvalidRequest: The id is none.
            PreconditionFailed: Its approach is not approved, or it is being worked on.
            Unavailable: Log or store do not answer; the session goes on when it is asked again.
        """
        with self._alone(checked_id(session_id)):
            session = await self.session(session_id)
            match session.status:
                case SessionStatus.COMPLETED:
                    return self._result(session, _status(session.stop_reason))
                case SessionStatus.EXECUTING if not session.requests:
                    ended = await self._end(session.broken_off(), ExecutionStatus.FAILED, _INTERRUPTED)
                    return self._result(ended, "error")
                case SessionStatus.ERROR if session.error == _INTERRUPTED:
                    return self._result(session, "error")
                case SessionStatus.APPROVED:
                    return await self._carry_out(replace(session, limits=limits or RequestLimits()))
                case SessionStatus.EXECUTING:
                    return await self._carry_out(session)
                case _:
                    raise PreconditionFailed(
                        f"there is no approved approach to carry out; the session is {session.status}"
                    )

    async def session(self, session_id: str) -> PlanSession:
        """A session as it stands. Raises NotFound, InvalidRequest, Unavailable."""
        session = await self._store.get(checked_id(session_id))
        if session is None:
            raise NotFound(f"there is no session {session_id[:100]!r}", field="session_id")
        return session

    async def sessions(self) -> tuple[SessionCard, ...]:
        """The cards of all sessions, the one that was worked on last first. Raises Unavailable."""
        return await self._store.listed()

    def working(self, session: PlanSession) -> bool:
        """Whether a request of the session is being carried out now."""
        return session.session_id in self._at_work or self._runs.elsewhere(session)

    async def _propose(self, session: PlanSession) -> AwaitingApproval | PlanFailed:
        """Carry out a request up to a proposal."""
        async with AsyncExitStack() as stack:
            try:
                tools = await stack.enter_async_context(self._tools(session))
            except FleetError as error:
                return await self._failed(session, str(error))
            try:
                async with self._recorded(session, tools) as (run, tools_found):
                    end = await self._uncancelled(
                        session, run.adjust() if session.adjustment else run.plan(tools_found)
                    )
            except GoalCancelled as cancelled:
                session = await self._cancelled(session, cancelled)
                return PlanFailed(session_id=session.session_id, error=session.error)
        if end.proposed is None:
            detail = f": {end.answer}" if end.answer.strip() and not end.error else ""
            return await self._failed(end.session, end.error or f"the model proposed nothing{detail}")
        if end.proposed.question:
            question = self._clean(end.proposed.question)
            session = replace(end.session, status=SessionStatus.AWAITING_ANSWER, question=question, error="")
            await self._runs.awaited(session)
            return AwaitingApproval.of(await self._save(session))
        session = replace(
            end.session,
            status=SessionStatus.AWAITING_APPROVAL,
            approach=self._clean(end.proposed.approach),
            reasoning=self._clean(end.proposed.reasoning),
            proposals=end.session.proposals + 1,
            error="",
        )
        await self._runs.awaited(session)
        return AwaitingApproval.of(await self._save(session))

    async def _carry_out(self, session: PlanSession) -> PlanResult:
        """Carry out what was approved, from its beginning or from where an earlier process left it."""
        if self._runs.elsewhere(session):
            raise being_worked_on()
        async with AsyncExitStack() as stack:
            tools = await stack.enter_async_context(self._tools(session))
            if session.status is SessionStatus.EXECUTING:
                session = await self._take(session)
            else:
                session = await self._begin(session, SessionStatus.EXECUTING)
            try:
                async with self._recorded(session, tools) as (run, _):
                    end = await self._uncancelled(session, run.carry_out())
            except GoalCancelled as cancelled:
                return self._result(await self._cancelled(session, cancelled), "error")
        error = "" if end.stop_reason in _GOOD_ENDS else end.error
        session = replace(end.session, answer=end.answer, error=error)
        if end.stop_reason in FAULTS:
            # The conversation is whole, so the next call goes on behind what was done.
            return self._result(await self._save(replace(session, status=SessionStatus.APPROVED)), "error")
        session = await self._end(session, ExecutionStatus.COMPLETED, error)
        return self._result(session, _status(session.stop_reason))

    async def _rejected(self, session: PlanSession, reason: str) -> Rejected:
        reason = self._clean(reason)
        why = f": {reason}" if reason else ""
        session = replace(session, stop_reason=StopReason.REJECTED, rejection=reason)
        session = session.closed(f"the person rejected this approach{why}")
        await self._end(session, ExecutionStatus.REJECTED, rejection(reason))
        return Rejected(session_id=session.session_id, message=rejection(reason))

    async def _failed(self, session: PlanSession, error: str) -> PlanFailed:
        session = await self._end(session, ExecutionStatus.FAILED, self._clean(error))
        return PlanFailed(session_id=session.session_id, error=session.error)

    async def _end(self, session: PlanSession, status: ExecutionStatus, why: str) -> PlanSession:
        """The session with its goal ended: in the log, in the store, and for whoever learns from it."""
        await self._runs.end(session, status, why)
        ended = replace(session, status=_ENDED.get(status, SessionStatus.ERROR))
        if ended.status is SessionStatus.ERROR:
            ended = replace(ended, error=why)
        ended = await self._save(ended)
        await self._notify(session, status, session.rejection or why)
        return ended

    @contextmanager
    def _alone(self, session_id: str) -> Generator[None]:
        """One request of a session at a time in this process. Raises PreconditionFailed."""
        if session_id in self._at_work:
            raise being_worked_on()
        self._at_work.add(session_id)
        try:
            yield
        finally:
            self._at_work.discard(session_id)

    async def _begin(self, session: PlanSession, status: SessionStatus) -> PlanSession:
        """The session with another request, which is this process's."""
        return await self._take(replace(session, status=status, requests=session.requests + 1, owner=self._runs.me))

    async def _take(self, session: PlanSession) -> PlanSession:
        """The session with its request this process's. Raises PreconditionFailed where another process has it."""
        if self._runs.elsewhere(session):
            raise being_worked_on()
        try:
            return await self._save(replace(session, owner=self._runs.me))
        except PreconditionFailed:
            raise being_worked_on() from None

    async def _uncancelled(self, session: PlanSession, work: Coroutine[Any, Any, RunEnd]) -> RunEnd:
        """What the work on a request comes to. Raises GoalCancelled where the goal is cancelled meanwhile."""
        working, cancelled = asyncio.create_task(work), asyncio.create_task(self._runs.cancelled(session))
        try:
            await asyncio.wait({working, cancelled}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and cancelled.exception() is None:
                raise goal_cancelled(cancelled.result())
            return await working
        finally:
            for task in (working, cancelled):
                task.cancel()
            await asyncio.wait({working, cancelled})

    async def _cancelled(self, session: PlanSession, cancelled: GoalCancelled) -> PlanSession:
        """The session with its goal given up."""
        error = self._clean(cancelled.message)
        left = await self._abandoned(session, error) if session.status.working else session
        return await self._end(left.closed(error), ExecutionStatus.CANCELLED, error)

    async def _abandoned(self, session: PlanSession, reason: str) -> PlanSession:
        """The session with what was done of its request, which nobody carries out any further."""
        if not session.requests:
            return session
        async with self._runs.recorded(session, claim=False) as (record, run):
            if run.started is not None and run.finished is None:
                await record.journal.append(run_finished(record.trail, StopReason.CANCELLED, run.usage, error=reason))
        left = session.with_run(run)
        return replace(left, usage=left.usage + run.usage, sub_agents=left.sub_agents + sub_agents_used(run.steps))

    @asynccontextmanager
    async def _recorded(
        self, session: PlanSession, tools: PlanTools
    ) -> AsyncGenerator[tuple[PlanningRun, Mapping[str, ToolResult]]]:
        """The agent of the session's request, and by operation what tools gave it before its first message."""
        model = self._model
        if isinstance(model, ModelSessions):
            # With one server for the whole request: it has the prompt cached.
            model = model.session(f"plan-{session.session_id}", tenant=self._runs.tenant)
        async with self._runs.recorded(session) as (record, earlier):
            run = PlanningRun(
                session,
                record,
                earlier,
                model=model,
                tools=tools,
                limits=session.limits.over(self._limits_of(session)),
                sub_agents=self._sub_agents,
                mask=self._clean,
                prices=self._prices,
            )
            yield run, await self._runs.tool_results(session) if earlier.generation else {}

    def _limits_of(self, session: PlanSession) -> Limits:
        """The limits of a request of which its caller says nothing."""
        return self._task_limits if session.status is SessionStatus.EXECUTING else self._limits

    async def _save(self, session: PlanSession) -> PlanSession:
        """The session as its next revision. Raises PreconditionFailed, ResourceExhausted, Unavailable."""
        now = self._clock().isoformat()
        kept = replace(session, revision=session.revision + 1, started_at=session.started_at or now, updated_at=now)
        await self._store.put(kept)
        return kept

    async def _notify(self, session: PlanSession, status: ExecutionStatus, reason: str) -> None:
        """Tell the listener how a session, as it stood then, ended; that it does not listen changes nothing."""
        if self._listener is None:
            return
        try:
            await self._listener.on_outcome(PlanOutcome.of(session, status, reason))
        except FleetError as error:
            _log.warning("plan_session.outcome_not_heard", session=session.session_id, reason=error.message)

    def _result(self, session: PlanSession, status: Ending) -> PlanResult:
        return PlanResult.of(session, status, self._clean)

    def _clean(self, text: str) -> str:
        return self._secrets(well_formed(text))


def being_worked_on() -> PreconditionFailed:
    """What is said to the second of two who want a session."""
    return PreconditionFailed("the session is being worked on", field="session_id", hint="try again when that is done")


def _status(stop: StopReason | None) -> Ending:
    return "completed" if stop in _GOOD_ENDS else "limit_reached"


def _check_decider(session: PlanSession, decision: ApprovalDecision, by: str) -> None:
    if not by or by != session.started_by or decision is ApprovalDecision.REJECTED or session.question:
        return
    _log.warning("approval.refused", plan_session=session.session_id, caller=by, decision=str(decision))
    raise PermissionDenied(
        "the person who set the goal cannot approve the approach",
        field="decision",
        hint="ask another approver, or reject it",
    )
