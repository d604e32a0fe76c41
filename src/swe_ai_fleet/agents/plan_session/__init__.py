"""Planning with a person: memory first, a proposal, a decision, and only then what has an effect."""

from swe_ai_fleet.agents.plan_session.answers import Approved, AwaitingApproval, PlanFailed, PlanResult, Rejected
from swe_ai_fleet.agents.plan_session.outcomes import OutcomeListener, PlanOutcome
from swe_ai_fleet.agents.plan_session.planning_run import PLANNER_LIMITS, PlanTools
from swe_ai_fleet.agents.plan_session.session import PlanSession, Research, SessionStatus, ToolCallMade
from swe_ai_fleet.agents.plan_session.sessions import PlanSessions
from swe_ai_fleet.agents.plan_session.store import SessionsInMemory, SessionStore

__all__ = [
    "PLANNER_LIMITS",
    "Approved",
    "AwaitingApproval",
    "OutcomeListener",
    "PlanFailed",
    "PlanOutcome",
    "PlanResult",
    "PlanSession",
    "PlanSessions",
    "PlanTools",
    "Rejected",
    "Research",
    "SessionStatus",
    "SessionStore",
    "SessionsInMemory",
    "ToolCallMade",
]
