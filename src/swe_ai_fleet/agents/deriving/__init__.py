"""A planner that splits a task into subtasks."""

from swe_ai_fleet.agents.deriving.prompt import STRATEGIES
from swe_ai_fleet.agents.deriving.run import DeriveRun, derivation_in

__all__ = ["STRATEGIES", "DeriveRun", "derivation_in"]
