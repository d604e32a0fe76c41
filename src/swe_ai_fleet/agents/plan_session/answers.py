"""What callers of plan sessions are answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from swe_ai_fleet.agents.plan_session.session import PlanSession, ToolCallMade
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.trajectory import StopReason

Ending = Literal["completed", "limit_reached", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitingApproval:
    """A proposal that waits for a person, or the `question` that its model has before it can propose.

    `memory_results` has coverage (percent; None where no entities were selected), content, gaps, sources, research.
    `proposal` is the number of the proposal in the session.
    """

    session_id: str
    goal: str
    approach: str
    reasoning: str
    memory_results: Mapping[str, object]
    proposal: int = 1
    question: str = ""
    status: Literal["awaiting_approval", "awaiting_answer"] = "awaiting_approval"

    @classmethod
    def of(cls, session: PlanSession) -> AwaitingApproval:
        research = to_plain(session.research) if session.research is not None else None
        return cls(
            session_id=session.session_id,
            goal=session.goal,
            approach=session.approach,
            reasoning=session.reasoning,
            memory_results={**to_plain(session.memory), "research": research},
            proposal=session.proposals,
            question=session.question,
            status="awaiting_answer" if session.question else "awaiting_approval",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFailed:
    """No proposal came about."""

    session_id: str
    error: str
    status: Literal["error"] = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """The decision is kept; `continue_plan` carries the approach out."""

    session_id: str
    message: str = "The approach is approved; continue the plan to carry it out."
    status: Literal["approved"] = "approved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The session is over; nothing with an effect was done."""

    session_id: str
    message: str
    status: Literal["rejected"] = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """What came of an approved plan. `limit_reached` is an answer all the same; `stop_reason` says which limit.

    `final_plan` is the approved approach, `results` the model's own account of what was done.
    """

    status: Ending
    session_id: str
    goal: str
    final_plan: str
    results: str
    tool_calls_made: tuple[ToolCallMade, ...] = ()
    iterations: int = 0
    stop_reason: StopReason | None = None
    usage: Usage = field(default_factory=Usage)
    error: str = ""

    @classmethod
    def of(cls, session: PlanSession, status: Ending, mask: Callable[[str], str]) -> PlanResult:
        return cls(
            status=status,
            session_id=session.session_id,
            goal=session.goal,
            final_plan=session.approach,
            results=session.answer,
            tool_calls_made=session.calls_made(mask),
            iterations=len(session.own_steps),
            stop_reason=session.stop_reason,
            usage=session.usage,
            error=session.error,
        )


def rejection(reason: str) -> str:
    """What is said of a rejected approach."""
    why = f": {reason}" if reason else ""
    return f"The approach was rejected{why}. Nothing was carried out."
