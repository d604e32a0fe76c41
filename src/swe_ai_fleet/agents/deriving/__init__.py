"""A planner that splits a task into subtasks."""

from swe_ai_fleet.agents.deriving.run import STRATEGIES, DeriveRun, derivation_in

__all__ = ["STRATEGIES", "DeriveRun", "derivation_in"]
