"""Planning with a person: memory first, a proposal, a decision, and only then what has an effect."""

from swe_ai_fleet.agents.plan_session.planning_run import PLANNER_LIMITS, PlanTools
from swe_ai_fleet.agents.plan_session.requests import RequestLimits
from swe_ai_fleet.agents.plan_session.run_log import RunLog
from swe_ai_fleet.agents.plan_session.session import (
    Approved,
    AwaitingApproval,
    OutcomeListener,
    PlanFailed,
    PlanOutcome,
    PlanResult,
    PlanSession,
    Rejected,
    Research,
    SessionCard,
    SessionStatus,
    ToolCallMade,
)
from swe_ai_fleet.agents.plan_session.sessions import PlanSessions
from swe_ai_fleet.agents.plan_session.store import (
    PARTS_BUCKET,
    SESSIONS_BUCKET,
    KeyValueSessions,
    SessionsInMemory,
    SessionStore,
)

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
    "PlanSessions",
    "PlanTools",
    "Rejected",
    "RequestLimits",
    "Research",
    "RunLog",
    "SessionCard",
    "SessionStatus",
    "SessionStore",
    "SessionsInMemory",
    "ToolCallMade",
]
