"""The engine of planning with a person: propose, decide, carry out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from swe_ai_fleet.agents.plan_session.leases import LeasesInMemory, SessionLeases
from swe_ai_fleet.agents.plan_session.planning_run import FAULTS, PLANNER_LIMITS, PlanningRun, PlanTools, briefing
from swe_ai_fleet.agents.plan_session.proposals import ADJUSTED, APPROVED
from swe_ai_fleet.agents.plan_session.requests import (
    checked_adjustment,
    checked_decision,
    checked_entities,
    checked_goal,
    checked_id,
    checked_limits,
    checked_repository,
)
from swe_ai_fleet.agents.plan_session.session import (
    Approved,
    AwaitingApproval,
    Ending,
    OutcomeListener,
    PlanFailed,
    PlanResult,
    PlanSession,
    Rejected,
    SessionCard,
    SessionStatus,
    rejection,
)
from swe_ai_fleet.agents.plan_session.store import SessionRegistry, SessionsInMemory, SessionStore
from swe_ai_fleet.agents.sub_agents.structured_output import opening
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits
from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.budget import Limits, Prices
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PermissionDenied, PreconditionFailed
from swe_ai_fleet.domain.message import Message, UserMessage
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import ChatModel, ModelSessions, SecretMask
from swe_ai_fleet.tools.secrets import Secrets

_log = structlog.get_logger(__name__)
_GOOD_ENDS = frozenset({StopReason.FINAL_ANSWER, StopReason.NO_TOOL_CALLS})
_INTERRUPTED = (
    "its process ended while the approved approach was being carried out; what it did stands in the audit. "
    "Set the goal again to go on."
)


class PlanSessions:
    """Plans goals, waits for decisions, carries out what was approved.

    Args:
        model: The model that plans; it plays the sub-agents too.
        tools: Opens what a session works with for the time of one request.
        store: Keeps the sessions between requests; without one, they end with the process.
        leases: Who works on which session; without any, only requests of this object know of each other.
        limits: Of one request.
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
        leases: SessionLeases | None = None,
        limits: Limits = PLANNER_LIMITS,
        sub_agents: SubAgentLimits | None = None,
        prices: Prices | None = None,
        listener: OutcomeListener | None = None,
        mask: SecretMask | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._model = model
        self._tools = tools
        self._registry = SessionRegistry(store or SessionsInMemory(), leases or LeasesInMemory(), listener, clock)
        self._sub_agents = sub_agents or SubAgentLimits()
        self._limits, self._prices = checked_limits(limits, self._sub_agents, prices), prices
        self._secrets = mask or Secrets()
        self._new_id = new_id

    async def execute_plan(
        self,
        goal: str,
        selected_entities: Sequence[str] = (),
        session_id: str | None = None,
        *,
        repository: str = "",
        ref: str = "",
        by: str = "",
    ) -> AwaitingApproval | PlanFailed:
        """Search memory, research its gaps, and have an approach proposed; nothing with an effect runs.

        The same goal again, while its proposal waits, gives that proposal; another goal goes on in the session's
        conversation.

        Args:
            goal: What is to be reached.
            selected_entities: Names that the person chose as relevant; none is valid.
            session_id: A session to go on with; an unknown or absent one starts a new one.
            repository: Path or URL of a repository to look into; empty: the session's, or none.
            ref: Branch, tag or commit of it; empty: what is checked out.
            by: Who asks; empty where callers cannot be told apart.

        Raises:
            InvalidRequest: Naming the field.
            PreconditionFailed: The session is being worked on.
        """
        goal, entities = checked_goal(goal), checked_entities(selected_entities)
        session_id = checked_id(session_id or self._new_id())
        repository, ref = checked_repository(repository, ref)
        session = PlanSession(
            session_id=session_id,
            goal=goal,
            selected_entities=entities,
            repository=repository,
            ref=ref,
            started_by=by,
        )
        async with self._registry.alone(session_id):
            known = await self._registry.find(session_id)
            if known is not None:
                session = known.followed_by(session)
                if session.same_as(known) and known.status is SessionStatus.AWAITING_APPROVAL:
                    return AwaitingApproval.of(known)
            session = await self._registry.keep(session)
            try:
                async with self._tools(session) as tools:
                    return await self._plan(session, tools)
            except FleetError as error:
                return await self._failed(session, str(error))

    async def approve(
        self,
        session_id: str,
        decision: ApprovalDecision | str,
        adjustment: str = "",
        *,
        proposal: int = 0,
        by: str = "",
    ) -> Approved | AwaitingApproval | Rejected | PlanFailed:
        """Decide about the proposal that waits. Adjusted, it goes back to the model, which proposes again.

        Args:
            session_id: Whose proposal.
            decision: approved, rejected or adjusted.
            adjustment: What is to be different, or why it is rejected.
            proposal: The number of the one that the person has seen; 0: whichever waits.
            by: Who decides; empty where callers cannot be told apart. Who set the goal may only reject.

        Raises:
            NotFound: There is no such session.
            PreconditionFailed: Nothing waits there, or another proposal, or it is being worked on.
            InvalidRequest: There is no such decision, or an adjustment without text.
            PermissionDenied: They set the goal themselves.
        """
        decision, adjustment = checked_decision(decision), checked_adjustment(adjustment)
        session_id = checked_id(session_id)
        async with self._registry.alone(session_id):
            session = await self._registry.known(session_id)
            _check_decider(session, decision, by)
            match session.status, decision:
                case SessionStatus.APPROVED, ApprovalDecision.APPROVED:
                    return Approved(session_id=session_id)
                case SessionStatus.REJECTED, ApprovalDecision.REJECTED:
                    return Rejected(session_id=session_id, message=rejection(""))
                case _:
                    pass
            if session.status is not SessionStatus.AWAITING_APPROVAL:
                raise PreconditionFailed(f"no proposal waits in this session: it is {session.status}")
            if proposal and proposal != session.proposals:
                raise PreconditionFailed(
                    f"proposal {session.proposals} waits, not {proposal}", field="proposal", hint="look at it first"
                )
            match decision:
                case ApprovalDecision.APPROVED:
                    await self._registry.keep(replace(session, status=SessionStatus.APPROVED, decided_by=by))
                    return Approved(session_id=session_id)
                case ApprovalDecision.REJECTED:
                    return await self._rejected(session, adjustment)
                case ApprovalDecision.ADJUSTED:
                    return await self._adjusted(session, adjustment)

    async def continue_plan(self, session_id: str) -> PlanResult:
        """Carry out what was approved, from the exact point of the proposal on. Again gives the same result.

        Raises:
            NotFound: There is no such session.
            InvalidRequest: The id is none.
            PreconditionFailed: Its approach is not approved, or it is being worked on.
        """
        async with self._registry.alone(checked_id(session_id)):
            session = await self._registry.known(session_id)
            match session.status:
                case SessionStatus.COMPLETED:
                    return self._result(session, _status(session.stop_reason))
                case SessionStatus.EXECUTING:
                    ended = replace(session.broken_off(), status=SessionStatus.ERROR, error=_INTERRUPTED)
                    return self._result(await self._registry.keep(ended), "error")
                case SessionStatus.ERROR if session.error == _INTERRUPTED:
                    return self._result(session, "error")
                case SessionStatus.APPROVED:
                    pass
                case _:
                    raise PreconditionFailed(f"nothing approved is to be carried out: the session is {session.status}")
            async with self._tools(session) as tools:
                session = await self._registry.keep(replace(session, status=SessionStatus.EXECUTING))
                return await self._carry_out(session, tools)

    async def session(self, session_id: str) -> PlanSession:
        """A session as it stands. Raises NotFound, InvalidRequest, Unavailable."""
        return await self._registry.known(checked_id(session_id))

    async def sessions(self) -> tuple[SessionCard, ...]:
        """The cards of all sessions, the one that was worked on last first. Raises Unavailable."""
        return await self._registry.listed()

    async def working(self, session_id: str) -> bool:
        """Whether a request of the session is being carried out now. Raises InvalidRequest, Unavailable."""
        return await self._registry.working(checked_id(session_id))

    async def _plan(self, session: PlanSession, tools: PlanTools) -> AwaitingApproval | PlanFailed:
        run = self._run(session, tools)
        memory = await run.recall(session)
        research = await run.research(memory.gaps)
        session = replace(session, memory=memory, research=research)
        sections = briefing(session)
        first = opening(
            "sub_session", sections, iterations=self._limits.max_iterations, later=[spec.name for spec in run.later]
        )
        messages = (*session.messages, first[-1]) if session.messages else first
        return await self._propose(session, run, messages)

    async def _adjusted(self, session: PlanSession, adjustment: str) -> AwaitingApproval | PlanFailed:
        if not adjustment:
            raise InvalidRequest("an adjustment says what is to be different", field="adjustment")
        messages = session.messages
        if not session.waits:
            messages = (*messages, UserMessage(content=ADJUSTED.format(text=adjustment)))
        async with self._tools(session) as tools:
            return await self._propose(session, self._run(session, tools), messages, adjustment=adjustment)

    async def _propose(
        self, session: PlanSession, run: PlanningRun, messages: Sequence[Message], *, adjustment: str = ""
    ) -> AwaitingApproval | PlanFailed:
        trajectory, conversation, proposed = await run.propose(messages, adjustment=adjustment)
        session = run.after(session, trajectory, conversation)
        if proposed is None:
            return await self._failed(session, trajectory.error or "the model proposed nothing")
        session = replace(
            session,
            status=SessionStatus.AWAITING_APPROVAL,
            approach=self._clean(proposed.approach),
            reasoning=self._clean(proposed.reasoning),
            proposals=session.proposals + 1,
            error="",
        )
        return AwaitingApproval.of(await self._registry.keep(session))

    async def _carry_out(self, session: PlanSession, tools: PlanTools) -> PlanResult:
        messages = session.messages
        if not session.waits:
            messages = (*messages, UserMessage(content=APPROVED))
        run = self._run(session, tools)
        trajectory, conversation = await run.carry_out(messages)
        session = replace(run.after(session, trajectory, conversation), answer=self._clean(trajectory.answer))
        error = "" if trajectory.stop_reason in _GOOD_ENDS else self._clean(trajectory.error)
        if trajectory.stop_reason in FAULTS:
            # The conversation is whole, so the next call goes on behind what was done.
            session = await self._registry.keep(replace(session, status=SessionStatus.APPROVED, error=error))
            return self._result(session, "error")
        session = await self._registry.keep(replace(session, status=SessionStatus.COMPLETED, error=error))
        await self._registry.tell(session)
        return self._result(session, _status(session.stop_reason))

    async def _rejected(self, session: PlanSession, reason: str) -> Rejected:
        why = f": {reason}" if reason else ""
        session = replace(session, status=SessionStatus.REJECTED, stop_reason=StopReason.REJECTED)
        session = await self._registry.keep(session.closed(f"the person rejected this approach{why}"))
        await self._registry.tell(session)
        return Rejected(session_id=session.session_id, message=rejection(reason))

    async def _failed(self, session: PlanSession, error: str) -> PlanFailed:
        error = self._clean(error)
        await self._registry.keep(replace(session, status=SessionStatus.ERROR, error=error))
        return PlanFailed(session_id=session.session_id, error=error)

    def _result(self, session: PlanSession, status: Ending) -> PlanResult:
        return PlanResult.of(session, status, self._clean)

    def _clean(self, text: str) -> str:
        return self._secrets(well_formed(text))

    def _run(self, session: PlanSession, tools: PlanTools) -> PlanningRun:
        model = self._model
        if isinstance(model, ModelSessions):
            # With one server for the whole request: it has the prompt cached.
            model = model.session(f"plan-{session.session_id}")
        return PlanningRun(
            session,
            model=model,
            tools=tools,
            limits=self._limits,
            sub_agents=self._sub_agents,
            prices=self._prices,
        )


def _status(stop: StopReason | None) -> Ending:
    return "completed" if stop in _GOOD_ENDS else "limit_reached"


def _check_decider(session: PlanSession, decision: ApprovalDecision, by: str) -> None:
    if not by or by != session.started_by or decision is ApprovalDecision.REJECTED:
        return
    _log.warning("approval.refused", plan_session=session.session_id, caller=by, decision=str(decision))
    raise PermissionDenied(
        "who set the goal does not approve of the approach", field="decision", hint="ask somebody else, or reject it"
    )
