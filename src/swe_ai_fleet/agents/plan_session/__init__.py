"""Planning with a person: memory first, a proposal, a decision, and only then what has an effect."""

from swe_ai_fleet.agents.plan_session.answers import Approved, AwaitingApproval, PlanFailed, PlanResult, Rejected
from swe_ai_fleet.agents.plan_session.kept import PARTS_BUCKET, SESSIONS_BUCKET, KeyValueSessions
from swe_ai_fleet.agents.plan_session.leases import (
    LEASE_SECONDS,
    LEASES_BUCKET,
    KeyValueLeases,
    LeasesInMemory,
    SessionLeases,
)
from swe_ai_fleet.agents.plan_session.outcomes import OutcomeListener, PlanOutcome
from swe_ai_fleet.agents.plan_session.planning_run import PLANNER_LIMITS, PlanTools
from swe_ai_fleet.agents.plan_session.session import PlanSession, Research, SessionCard, SessionStatus, ToolCallMade
from swe_ai_fleet.agents.plan_session.sessions import PlanSessions
from swe_ai_fleet.agents.plan_session.store import SessionsInMemory, SessionStore

__all__ = [
    "LEASES_BUCKET",
    "LEASE_SECONDS",
    "PARTS_BUCKET",
    "PLANNER_LIMITS",
    "SESSIONS_BUCKET",
    "Approved",
    "AwaitingApproval",
    "KeyValueLeases",
    "KeyValueSessions",
    "LeasesInMemory",
    "OutcomeListener",
    "PlanFailed",
    "PlanOutcome",
    "PlanResult",
    "PlanSession",
    "PlanSessions",
    "PlanTools",
    "Rejected",
    "Research",
    "SessionCard",
    "SessionLeases",
    "SessionStatus",
    "SessionStore",
    "SessionsInMemory",
    "ToolCallMade",
]
