"""What every index makes of its arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from swe_ai_fleet.domain.errors import InvalidRequest

MAX_DIMENSION = 8_192
# Of a search; what a scope holds is listed whole.
MAX_MATCHES = 10_000


def unit(vector: Sequence[float]) -> list[float]:
    """The vector with length 1; nothing for one that points nowhere. Raises InvalidRequest for what is no vector."""
    if len(vector) > MAX_DIMENSION:
        raise InvalidRequest(f"a vector has at most {MAX_DIMENSION} numbers, this one {len(vector)}", field="vector")
    length = math.hypot(*vector)
    if not math.isfinite(length):
        raise InvalidRequest("a vector holds finite numbers only", field="vector")
    return [number / length for number in vector] if length else []


def check_dimension(space: str, known: int, vector: Sequence[float]) -> None:
    """Raises InvalidRequest where the vectors of a space have another length (0: there are none yet)."""
    if known and len(vector) != known:
        raise InvalidRequest(
            f"the vectors of {space!r} have {known} numbers, this one {len(vector)}",
            field="vector",
            hint="an embedder of other vectors needs another name",
        )


def check_search(words: str, vector: Sequence[float]) -> None:
    """Raises InvalidRequest where both are given."""
    if words and len(vector):
        raise InvalidRequest("search by words or by a vector, one at a time", field="vector")


def bounded(limit: int) -> int:
    """How many a search finds at most, whatever was asked for."""
    return max(0, min(limit, MAX_MATCHES))
