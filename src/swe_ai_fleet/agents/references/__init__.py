"""Resolving references such as "that file" and "the second one": phrases, named things, and how they are matched."""

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
