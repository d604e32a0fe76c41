"""What "that file" and "the second one" mean: phrases, the things that were named, and how both are matched."""

from swe_ai_fleet.agents.references.naming import Naming
from swe_ai_fleet.agents.references.phrases import ANSWER, MAX_PER_TURN, PERSON, NamedThing, ThingKind
from swe_ai_fleet.agents.references.resolving import Certainty, note, question, resolve, vague_question

__all__ = [
    "ANSWER",
    "MAX_PER_TURN",
    "PERSON",
    "Certainty",
    "NamedThing",
    "Naming",
    "ThingKind",
    "note",
    "question",
    "resolve",
    "vague_question",
]
