"""A search over long-term memory and the repository."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

import structlog

from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch, asked_texts
from swe_ai_fleet.agents.sub_agents.recall import names
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.memory import MemoryScope, Recollection
from swe_ai_fleet.memory.presenting import origin_of, presented
from swe_ai_fleet.ports import Memories, SecretMask
from swe_ai_fleet.tools.secrets import Secrets

_HITS = 3
_AT_ONCE = 4
_MOST_SHOWN = 12
_SECONDS = 30.0
MEMORY_AWAY = "Long-term memory is not available."
REPOSITORY_AWAY = "The repository could not be searched."

_log = structlog.get_logger(__name__)


class FleetMemory:
    """A `MemorySearch` over long-term memory and the repository; either may be unavailable.

    Args:
        memories: The long-term memories.
        scope: The part of them to search.
        repository: Searches the repository; None: it is not searched.
        mask: Hides secrets in memories.
    """

    def __init__(
        self,
        memories: Memories,
        scope: MemoryScope,
        repository: MemorySearch | None = None,
        *,
        mask: SecretMask | None = None,
    ) -> None:
        self._memories = memories
        self._scope = scope
        self._repository = repository
        self._mask = mask or Secrets()

    async def search(self, entities: Sequence[str], queries: Sequence[str]) -> MemoryResults:
        """The results of both: an entity is covered where one names it, a query where one has a match.

        Raises ToolFailure for invalid entities and queries; an unavailable source is mentioned in the content.
        """
        wanted, questions = asked_texts(entities, "an entity"), asked_texts(queries, "a query")
        texts = list(dict.fromkeys((*wanted, *questions)))
        if not texts:
            return MemoryResults()
        (recalled, notes), repository = await asyncio.gather(
            self._remembered(texts, frozenset(wanted) - frozenset(questions)), self._in_repository(wanted, questions)
        )
        gaps = tuple(text for text in texts if text not in recalled and text in repository.gaps)
        best = _best(recalled)
        passages = (presented(best, self._mask), *notes, repository.content)
        sources = [f"memory:{each.memory.memory_id[:8]} {origin_of(each, self._mask)}" for each in best]
        return MemoryResults(
            coverage=round(100 * (len(texts) - len(gaps)) / len(texts), 1),
            content="\n\n".join(part for part in passages if part),
            gaps=gaps,
            sources=(*sources, *repository.sources),
        )

    async def _in_repository(self, entities: Sequence[str], queries: Sequence[str]) -> MemoryResults:
        everything = tuple(dict.fromkeys((*entities, *queries)))
        if self._repository is None:
            return MemoryResults(coverage=0.0, gaps=everything)
        try:
            return await self._repository.search(entities, queries)
        except FleetError as error:
            _log.warning("memory.repository_not_searched", reason=str(error)[:200])
            return MemoryResults(coverage=0.0, content=REPOSITORY_AWAY, gaps=everything)

    async def _remembered(
        self, texts: Sequence[str], entities: frozenset[str]
    ) -> tuple[dict[str, tuple[Recollection, ...]], tuple[str, ...]]:
        """The memories by text, and a note where the memory is unavailable."""
        by_text: dict[str, tuple[Recollection, ...]] = {}
        try:
            async with asyncio.timeout(_SECONDS):
                for start in range(0, len(texts), _AT_ONCE):
                    some = texts[start : start + _AT_ONCE]
                    for text, recalled in zip(some, await asyncio.gather(*map(self._recall, some)), strict=True):
                        if text in entities:
                            recalled = tuple(memory for memory in recalled if names(text, memory.memory.text))
                        if recalled:
                            by_text[text] = recalled
        except (FleetError, TimeoutError) as error:
            _log.warning("memory.not_asked", reason=str(error)[:200])
            return by_text, (MEMORY_AWAY,)
        return by_text, ()

    async def _recall(self, text: str) -> tuple[Recollection, ...]:
        return await self._memories.recall(text, self._scope, limit=_HITS)


def _best(by_text: dict[str, tuple[Recollection, ...]]) -> list[Recollection]:
    """Each memory once, the best matches first."""
    best: dict[str, Recollection] = {}
    for each in sorted(chain.from_iterable(by_text.values()), key=lambda each: -each.score):
        best.setdefault(each.memory.memory_id, each)
    return list(best.values())[:_MOST_SHOWN]
