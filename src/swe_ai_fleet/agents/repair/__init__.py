"""Repairs calls whose meaning is plain: their names, the JSON of their arguments, the types in them.

Each repair is named, so that a trajectory shows what the model wrote and what was made of it. None changes a string
that could be read as it stands.
"""

from swe_ai_fleet.agents.repair.argument_coercion import coerce_arguments
from swe_ai_fleet.agents.repair.arguments import read_arguments
from swe_ai_fleet.agents.repair.reading import CallReader, Understood

__all__ = ["CallReader", "Understood", "coerce_arguments", "read_arguments"]
