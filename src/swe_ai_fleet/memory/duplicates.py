"""Memories that say the same in other words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from swe_ai_fleet.domain.memory import Memory
from swe_ai_fleet.ports import Match

NEAR = 0.95
"""From this cosine on, two texts are taken for the same thing said twice, if nothing that tells them apart differs."""
_EDGES = ".,;:!?()[]{}<>\"'`"
_TELLING = re.compile(r"[\d_/\\@#$%=+*&|~^-]|\w[.:]\w|\w[A-Z]|^[A-Z]")
_DENIALS = frozenset(
    ("no", "not", "never", "none", "without", "cannot", "nobody", "nothing", "neither", "nor", "except", "unless")
)


def near_duplicate(memory: Memory, matches: Iterable[Match]) -> Memory | None:
    """What an older memory says nearly as this one does; the newer one is to take its place.

    Vectors hardly see what matters most in a fact of a project: a number, a name, a path, a "not". So memories that
    differ in any of those are never the same, however near their vectors lie; nor are those of another kind or with
    other metadata.
    """
    for match in matches:
        other = match.memory
        if (
            match.score >= NEAR
            and other.memory_id != memory.memory_id
            and (other.tenant, other.namespace, other.kind) == (memory.tenant, memory.namespace, memory.kind)
            and dict(other.metadata) == dict(memory.metadata)
            and telling(other.text) == telling(memory.text)
        ):
            return other
    return None


def telling(text: str) -> frozenset[str]:
    """The words that tell similar sentences apart: numbers, names, identifiers, paths, denials."""
    found: set[str] = set()
    for token in text.split():
        word = token.strip(_EDGES)
        folded = word.casefold()
        if _TELLING.search(word) or folded in _DENIALS or folded.endswith(("n't", "n\N{RIGHT SINGLE QUOTATION MARK}t")):
            found.add(folded)
    return frozenset(found)
