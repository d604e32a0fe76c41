"""Plans: made by the model as a whole, checked against the real tools, carried out step by step, verified."""

from swe_ai_fleet.agents.planning.plan_run import ModeRules, PlanRules, PlanRun, drive
from swe_ai_fleet.agents.planning.planner import Planner
from swe_ai_fleet.agents.planning.progress import contradicts
from swe_ai_fleet.agents.planning.routing import Complexity, assess

__all__ = [
    "Complexity",
    "ModeRules",
    "PlanRules",
    "PlanRun",
    "Planner",
    "assess",
    "contradicts",
    "drive",
]
