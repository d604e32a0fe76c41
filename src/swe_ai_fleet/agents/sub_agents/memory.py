"""What is known already: the seam between agents that ask and whatever remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryResults:
    """What a search of memory gave. All text is untrusted.

    `coverage` is the share, in percent, of the entities and queries that were found; `gaps` are the others. `content`
    holds the passages, each behind its source; `sources` name them (`path#heading`, `commit <id>`). `asked` is all that
    was asked, as far as whoever searched says so.
    """

    coverage: float = 100.0
    content: str = ""
    gaps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()


class MemorySearch(Protocol):
    """Something that can be asked what is known."""

    async def search(self, entities: Sequence[str], queries: Sequence[str]) -> MemoryResults:
        """Look for entities as they are written and for what answers the queries. Raises FleetError.

        Where nothing is asked, nothing is searched and nothing is missing.
        """
        ...
