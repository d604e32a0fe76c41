"""What a session was like, for whoever learns from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from swe_ai_fleet.agents.plan_session.session import PlanSession, SessionStatus
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.goal import goal_type
from swe_ai_fleet.domain.trajectory import StopReason

SUB_AGENTS = ("research", "call_planner", "call_verifier", "call_executor", "call_generator")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome:
    """How a session ended.

    `approach_ratio` is the share of its proposals that were approved: 1.0 where the first one was, 0.0 where none was.
    `agents_used` names the sub-agents that were called, each once. `rating` is the person's, from 0 to 1.
    """

    session_id: str
    goal: str
    goal_type: str
    status: SessionStatus
    approach_ratio: float
    agents_used: tuple[str, ...]
    coverage: float
    usage: Usage
    stop_reason: StopReason | None = None
    rating: float | None = None

    @classmethod
    def of(cls, session: PlanSession) -> PlanOutcome:
        """The outcome of a session that ended."""
        called = {call.tool for call in session.calls_made() if call.success}
        called |= {"research"} if session.research is not None and not session.research.error else set()
        approved = session.status is not SessionStatus.REJECTED and session.proposals
        return cls(
            session_id=session.session_id,
            goal=session.goal,
            goal_type=goal_type(session.goal),
            status=session.status,
            approach_ratio=1 / session.proposals if approved else 0.0,
            agents_used=tuple(name for name in SUB_AGENTS if name in called),
            coverage=session.memory.coverage,
            usage=session.usage,
            stop_reason=session.stop_reason,
        )


class OutcomeListener(Protocol):
    """Hears of each session that came to its end."""

    async def on_outcome(self, outcome: PlanOutcome) -> None:
        """Take an outcome in. A FleetError that it raises is logged and changes nothing for the session."""
        ...
