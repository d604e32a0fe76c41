"""Planning with a person: memory first, a proposal, a decision, and only then what has an effect."""

from swe_ai_fleet.agents.plan_session.planning_run import PLANNER_LIMITS
from swe_ai_fleet.agents.plan_session.requests import Approved, AwaitingApproval, PlanFailed, PlanResult, Rejected
from swe_ai_fleet.agents.plan_session.session import (
    OutcomeListener,
    PlanOutcome,
    PlanSession,
    PlanTools,
    Research,
    SessionCard,
    SessionStatus,
    ToolCallMade,
)
from swe_ai_fleet.agents.plan_session.store import PARTS_BUCKET, SESSIONS_BUCKET, KeyValueSessions, RunLog

__all__ = [
    "PARTS_BUCKET",
    "PLANNER_LIMITS",
    "SESSIONS_BUCKET",
    "Approved",
    "AwaitingApproval",
    "KeyValueSessions",
    "OutcomeListener",
    "PlanFailed",
    "PlanOutcome",
    "PlanResult",
    "PlanSession",
    "PlanTools",
    "Rejected",
    "Research",
    "RunLog",
    "SessionCard",
    "SessionStatus",
    "ToolCallMade",
]
