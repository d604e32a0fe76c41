"""A plan session: a plan that a person decides about, from the goal to its result.

Callers get answers (`requests.py`); the memory that learns from sessions gets their outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.sub_agents.exploring import SUB_AGENTS
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.budget import RequestLimits, Usage
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.memory import MAX_GOAL_CHARS, MAX_REASON_CHARS, WorkOutcome, goal_type
from swe_ai_fleet.domain.message import Message, ToolMessage, UserMessage
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.trajectory import Step, StopReason
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline

GOOD_ENDS = frozenset({StopReason.FINAL_ANSWER, StopReason.NO_TOOL_CALLS})
"""The stop reasons of a run that completed its plan."""
_DIALOGUE = frozenset({"propose_approach", "final_answer", "request_tools", "ask_user"})
"""Calls of these belong to the dialogue with the person and are not counted as work."""
_ARGUMENT_CHARS = 1_000
_RESULT_CHARS = 500
_CARD_CHARS = 300
_CUT_OFF = "its process ended while this was being carried out: some of it may be done. Look before you do it again."
INTERRUPTED = (
    "its process ended while the session was being worked on; its calls are in the audit. "
    "Set the goal again to continue."
)


class SessionStatus(StrEnum):
    """The status of a session; `planning` and `executing` while its model works, or may resume."""

    PLANNING = "planning"
    AWAITING_APPROVAL = "awaiting_approval"
    AWAITING_ANSWER = "awaiting_answer"
    APPROVED = "approved"
    EXECUTING = "executing"
    COMPLETED = "completed"
    REJECTED = "rejected"
    ERROR = "error"

    @property
    def working(self) -> bool:
        """Whether a request of the session is being worked on, or was when its process ended."""
        return self in (SessionStatus.PLANNING, SessionStatus.EXECUTING)

    @property
    def waiting(self) -> bool:
        """Whether the session waits for a person: for a decision about a proposal, or the answer to a question."""
        return self in (SessionStatus.AWAITING_APPROVAL, SessionStatus.AWAITING_ANSWER)

    @property
    def over(self) -> bool:
        return self in (SessionStatus.COMPLETED, SessionStatus.REJECTED, SessionStatus.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Research:
    """The research about the gaps of memory; `error` says why it failed. Untrusted text."""

    summary: str = ""
    sources: tuple[str, ...] = ()
    data_points: tuple[str, ...] = ()
    coverage: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallMade:
    step: int
    tool: str
    arguments: str
    success: bool
    outcome: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCard:
    """A session in a few lines; its texts are cut."""

    session_id: str
    goal: str
    status: SessionStatus
    selected_entities: tuple[str, ...] = ()
    approach: str = ""
    answer: str = ""
    iterations: int = 0
    proposals: int = 0
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason | None = None
    error: str = ""
    started_at: str = ""
    updated_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSession:
    """The whole state of a session: another process can continue from it.

    `messages` are the whole conversation, `steps` the model's turns in it; a proposal that waits is the last step, its
    calls unanswered. `iterations_before` is the number of steps of earlier goals of the session. `revision` counts
    writes. Times are ISO 8601, UTC. `repository` (path or URL) at `ref` is the repository that the goal is about, if
    any. `started_by` is the caller who set the goal, where callers can be told apart.

    `attempt` counts the goals of the session and `requests` the requests for the current goal: each request has a run
    of its own in the log. `adjustment` is the person's text in the last request: the changes they want, or their answer
    to the model's `question`; `limits` are the limits of that request. `rejection` is the reason of a rejection.
    """

    session_id: str
    goal: str
    selected_entities: tuple[str, ...] = ()
    status: SessionStatus = SessionStatus.PLANNING
    revision: int = 0
    messages: tuple[Message, ...] = ()
    steps: tuple[Step, ...] = ()
    iterations_before: int = 0
    memory: MemoryResults = field(default_factory=MemoryResults)
    research: Research | None = None
    approach: str = ""
    reasoning: str = ""
    proposals: int = 0
    sub_agents: int = 0
    usage: Usage = field(default_factory=Usage)
    answer: str = ""
    stop_reason: StopReason | None = None
    error: str = ""
    started_at: str = ""
    updated_at: str = ""
    repository: str = ""
    ref: str = ""
    started_by: str = ""
    attempt: int = 1
    requests: int = 0
    adjustment: str = ""
    limits: RequestLimits = field(default_factory=RequestLimits)
    rejection: str = ""
    question: str = ""

    @property
    def own_steps(self) -> tuple[Step, ...]:
        return self.steps[self.iterations_before :]

    def calls_made(self, mask: Callable[[str], str] = str) -> tuple[ToolCallMade, ...]:
        """The calls that were answered, in their order, masked before they are cut."""
        return tuple(
            ToolCallMade(
                step=step.number - self.iterations_before,
                tool=call.name,
                arguments=mask(call.arguments)[:_ARGUMENT_CHARS],
                success=observation.result.success,
                outcome=str(observation.result.outcome),
                result=mask(observation.result.observation())[:_RESULT_CHARS],
            )
            for step in self.own_steps
            for call, observation in zip(step.reply.tool_calls, step.observations, strict=False)
        )

    @property
    def card(self) -> SessionCard:
        return SessionCard(
            session_id=self.session_id,
            goal=self.goal[:_CARD_CHARS],
            selected_entities=self.selected_entities,
            status=self.status,
            approach=self.approach[:_CARD_CHARS],
            answer=self.answer[:_CARD_CHARS],
            iterations=len(self.own_steps),
            proposals=self.proposals,
            usage=self.usage,
            stop_reason=self.stop_reason,
            error=self.error[:_CARD_CHARS],
            started_at=self.started_at,
            updated_at=self.updated_at,
        )

    def same_as(self, other: PlanSession) -> bool:
        own = (self.goal, self.selected_entities, self.repository, self.ref)
        return own == (other.goal, other.selected_entities, other.repository, other.ref)

    @property
    def waits(self) -> bool:
        """Whether a call of its conversation is not answered yet."""
        return bool(History(self.messages).unanswered())

    def closed(self, reason: str) -> PlanSession:
        calls = History(self.messages).unanswered()
        answers = tuple(ToolMessage(call_id=call.call_id, content=f"Error: {reason}") for call in calls)
        return replace(self, messages=(*self.messages, *answers))

    def with_run(self, run: RunState) -> PlanSession:
        if run.started is None:
            return self
        steps, begun = self.steps, run.steps
        if steps and begun and not begun[0].number:
            # The reply whose calls had waited for a decision.
            steps = (*steps[:-1], replace(steps[-1], observations=begun[0].observations))
            begun = begun[1:]
        return replace(self, messages=run.messages, steps=(*steps, *begun))

    def decided(self, resolution: ApprovalResolution) -> PlanSession:
        match resolution.decision:
            case ApprovalDecision.APPROVED:
                return replace(self, status=SessionStatus.APPROVED)
            case ApprovalDecision.REJECTED:
                why = f": {resolution.text}" if resolution.text else ""
                session = self.closed(f"the person rejected this approach{why}")
                return replace(
                    session, status=SessionStatus.REJECTED, stop_reason=StopReason.REJECTED, rejection=resolution.text
                )
            case ApprovalDecision.ADJUSTED:
                limits = resolution.limits or RequestLimits()
                return replace(
                    self,
                    status=SessionStatus.PLANNING,
                    adjustment=resolution.text,
                    requests=self.requests + 1,
                    limits=limits,
                )

    def interrupted(self) -> PlanSession:
        """The session with a note to its model: it is not known how much of the approved approach is done."""
        if self.waits:
            return self.closed(_CUT_OFF)
        return replace(self, messages=(*self.messages, UserMessage(content=f"The approach was approved; {_CUT_OFF}")))

    def followed_by(self, later: PlanSession) -> PlanSession:
        """The session with the goal of a `later` one, after the conversation so far."""
        if self.status is SessionStatus.EXECUTING:
            before = self.interrupted()
        else:
            before = self.closed("not carried out: the person continued with something else")
        return PlanSession(
            session_id=self.session_id,
            goal=later.goal,
            selected_entities=later.selected_entities,
            repository=later.repository or self.repository,
            ref=later.ref if later.repository else self.ref,
            revision=self.revision,
            messages=before.messages,
            steps=self.steps,
            iterations_before=len(self.steps),
            usage=self.usage,
            sub_agents=self.sub_agents,
            started_at=self.started_at,
            started_by=later.started_by,
            limits=later.limits,
            requests=later.requests,
            attempt=max(self.attempt + 1, later.attempt),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTools:
    """The workspace and the tools of a session; `toolkits` share the pipeline.

    `idle` names operations that the model is not shown until it asks for them, `unlisted` those of them that cannot
    work with these settings. `memory` is asked first; None: the repository's documents and history.
    """

    workspace: Workspace
    pipeline: Pipeline
    toolkits: Mapping[str, Toolkit] = field(default_factory=dict[str, Toolkit])
    idle: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    memory: MemorySearch | None = None


def outcome_of(session: PlanSession, status: ExecutionStatus, reason: str, *, tenant: str) -> WorkOutcome:
    """How a session ended: completed, rejected, failed (no proposal, or a model that no longer answered) or cancelled.

    Its approach ratio is the share of its proposals that were approved: 1.0 where the first one was, 0.0 where none
    was. The agents used are its sub-agents. `reason` says why it was rejected, failed or was cancelled.
    """
    calls = session.calls_made()
    called = {call.tool for call in calls if call.success}
    called |= {"research"} if session.research is not None and not session.research.error else set()
    before = ("search_memory", "research") if session.research is not None else ("search_memory",)
    carried_out = session.status in (SessionStatus.APPROVED, SessionStatus.EXECUTING, SessionStatus.COMPLETED)
    outcome = WorkOutcome(
        subject_id=session.session_id,
        tenant=tenant,
        goal=" ".join(session.goal.split())[:MAX_GOAL_CHARS],
        goal_type=goal_type(session.goal),
        approach=TaskKind.PLAN,
        agents=1,
        agents_used=tuple(name for name in SUB_AGENTS if name in called),
        success=status is ExecutionStatus.COMPLETED and session.stop_reason in (None, *GOOD_ENDS),
        status=status,
        approach_ratio=1 / max(1, session.proposals) if carried_out else 0.0,
        reason=reason[:MAX_REASON_CHARS],
        usage=session.usage,
        duration_ms=session.usage.duration_ms,
        ended_at=now(),
    )
    return outcome.with_calls((*before, *(call.tool for call in calls if call.tool not in _DIALOGUE)))
