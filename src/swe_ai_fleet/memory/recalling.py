"""Recall: what an index finds by words and what it finds by meaning, asked side by side and made one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import MAX_NAMESPACES, Memory, MemoryScope, Recollection
from swe_ai_fleet.memory.admission import admitted_query, admitted_scope
from swe_ai_fleet.memory.duplicates import near_duplicate
from swe_ai_fleet.memory.limits import MemoryLimits
from swe_ai_fleet.memory.meaning import Meaning
from swe_ai_fleet.memory.ranking import CANDIDATES, fused
from swe_ai_fleet.ports import Match, MemoryIndex

_NEIGHBOURS = 5
_SPARE = 1_000
_KNOWN_CHARS = 300
_MOST_COUNTED = 10_000

_log = structlog.get_logger(__name__)


def utc_now() -> datetime:
    """The present moment."""
    return datetime.now(UTC)


class Recalling:
    """Questions to a `MemoryIndex`: what fits, what is known already, what is too much.

    Args:
        index: What is asked.
        meaning: Gives vectors where there are any.
        limits: Of number and age.
        clock: What time it is.
    """

    def __init__(
        self,
        index: MemoryIndex,
        meaning: Meaning,
        limits: MemoryLimits,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._index = index
        self._meaning = meaning
        self._limits = limits
        self._clock = clock
        self._since_look: dict[tuple[str, str], int] = {}

    async def recall(self, query: str, scope: MemoryScope, *, limit: int) -> tuple[Recollection, ...]:
        """What fits a question, best first. Raises InvalidRequest, Unavailable."""
        scope, asked = admitted_scope(scope), admitted_query(query, limit)
        if not asked:
            return ()
        words, meaning = await asyncio.gather(
            self._index.search(scope, words=asked, limit=CANDIDATES), self._by_meaning(asked, scope)
        )
        # Fifty long texts and a long question take longer than others may wait.
        found = await asyncio.to_thread(
            fused, self._young(words), self._young(meaning), query=asked, limit=MAX_NAMESPACES * limit
        )
        return _once(found)[:limit]

    async def holds(self, memory: Memory) -> bool:
        """Whether the index has this very memory; one without a word to look for is not found."""
        scope = MemoryScope(tenant=memory.tenant, namespaces=(memory.namespace,))
        matches = await self._index.search(scope, words=memory.text[:_KNOWN_CHARS], limit=CANDIDATES)
        return any(match.memory.memory_id == memory.memory_id for match in matches)

    async def near(self, memory: Memory, vector: Sequence[float]) -> Memory | None:
        """Another memory that says nearly the same."""
        scope = MemoryScope(tenant=memory.tenant, namespaces=(memory.namespace,))
        return near_duplicate(memory, await self._neighbours(scope, vector, limit=_NEIGHBOURS))

    async def surplus(self, memory: Memory) -> tuple[Memory, ...]:
        """What its namespace holds too much now that this memory is there; looked up every so often only."""
        key = (memory.tenant, memory.namespace)
        since = self._since_look.get(key, self._limits.interval) + 1
        if since < self._limits.interval:
            self._since_look[key] = since
            return ()
        if len(self._since_look) >= _MOST_COUNTED:
            self._since_look.clear()
        self._since_look[key] = 0
        scope = MemoryScope(tenant=memory.tenant, namespaces=(memory.namespace,))
        listed = await self._index.listed(scope, limit=self._limits.per_namespace + _SPARE)
        now = self._clock()
        kept = self._limits.per_namespace
        return tuple(one for number, one in enumerate(listed) if number >= kept or self._limits.too_old(one, now))

    async def _by_meaning(self, text: str, scope: MemoryScope) -> tuple[Match, ...]:
        vector = await self._meaning.of(text)
        return await self._neighbours(scope, vector, limit=CANDIDATES)

    async def _neighbours(self, scope: MemoryScope, vector: Sequence[float], *, limit: int) -> tuple[Match, ...]:
        if not len(vector):
            return ()
        try:
            return await self._index.search(scope, vector=vector, space=self._meaning.space, limit=limit)
        except InvalidRequest as refusal:
            # The embedder has changed under its name; words still work.
            _log.warning("memory.vector_refused", reason=refusal.message)
            return ()

    def _young(self, matches: Sequence[Match]) -> list[Match]:
        """Without those that are too old."""
        now = self._clock()
        return [match for match in matches if not self._limits.too_old(match.memory, now)]


def _once(found: Sequence[Recollection]) -> tuple[Recollection, ...]:
    """The same words remembered in several namespaces are told once."""
    texts: set[str] = set()
    kept: list[Recollection] = []
    for one in found:
        text = " ".join(one.memory.text.split()).casefold()
        if text not in texts:
            texts.add(text)
            kept.append(one)
    return tuple(kept)
