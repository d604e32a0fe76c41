"""Memories that say the same in other words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from swe_ai_fleet.agents.sub_agents.recall.ranking import terms
from swe_ai_fleet.domain.memory import Memory
from swe_ai_fleet.ports import Match

NEAR = 0.97
"""From this cosine on, two texts are taken for the same thing said twice, if nothing that tells them apart differs."""
SHARED_WORDS = 0.6
"""And this share of their words, stop words aside, they must have in common."""
_EDGES = ".,;:!?()[]{}<>\"'`"
_TELLING = re.compile(r"[\d_/\\@#$%=+*&|~^-]|\w[.:]\w")
_DENIALS = frozenset(
    ("no", "not", "never", "none", "without", "cannot", "nobody", "nothing", "neither", "nor", "except", "unless")
)


def near_duplicate(memory: Memory, matches: Iterable[Match]) -> Memory | None:
    """Another memory that says nearly the same.

    Vectors hardly see what matters most in a fact of a project: a number, a name, a path, a "not"; and of a language
    that their model does not know they see nothing, so that all texts look the same. So memories that differ in any
    of those, or in many of their words, are never the same, however near their vectors lie; nor are those of another
    kind or with other metadata.
    """
    words, marks = frozenset(terms(memory.text)), telling(memory.text)
    for match in matches:
        other = match.memory
        if (
            match.score >= NEAR
            and other.memory_id != memory.memory_id
            and (other.tenant, other.namespace, other.kind) == (memory.tenant, memory.namespace, memory.kind)
            and dict(other.metadata) == dict(memory.metadata)
            and telling(other.text) == marks
            and _overlap(words, frozenset(terms(other.text))) >= SHARED_WORDS
        ):
            return other
    return None


def telling(text: str) -> frozenset[str]:
    """The words that tell similar sentences apart: numbers, names, identifiers, paths, denials."""
    found: set[str] = set()
    for token in text.split():
        word = token.strip(_EDGES)
        folded = word.casefold()
        denies = folded in _DENIALS or folded.endswith(("n't", "n\N{RIGHT SINGLE QUOTATION MARK}t"))
        if denies or _TELLING.search(word) or any(one.isupper() for one in word):
            found.add(folded)
    return frozenset(found)


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard's index; of texts without words, none."""
    return len(one & other) / len(one | other) if one | other else 0.0
