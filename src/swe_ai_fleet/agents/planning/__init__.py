"""Plans: made by the model as a whole, checked against the tools, executed step by step, verified."""

from swe_ai_fleet.agents.planning.planner import Operations as Operations
from swe_ai_fleet.agents.planning.progress import contradicts as contradicts
from swe_ai_fleet.agents.planning.routing import assess as assess
from swe_ai_fleet.agents.planning.routing import fast_path as fast_path
