"""Checks of memories before they are stored, and of queries; vectors of texts; searches of the index.

Limits bound the number and the age of memories.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import structlog

from swe_ai_fleet.domain.errors import InvalidRequest, ModelError, ModelRejected
from swe_ai_fleet.domain.memory import (
    MAX_MEMORY_CHARS,
    MAX_NAMESPACES,
    Memory,
    MemoryScope,
    Recollection,
    check_metadata,
    check_namespace,
    check_namespaces,
)
from swe_ai_fleet.domain.task import check_identifier
from swe_ai_fleet.domain.text import check_length, well_formed
from swe_ai_fleet.extensions.knowledge.memory_index import MemoryIndex
from swe_ai_fleet.extensions.knowledge.ranking import CANDIDATES, MemoryMatch, fused, near_duplicate
from swe_ai_fleet.ports import Embedder, SecretMask

_SLACK = 100
MAX_QUERY_CHARS = 2_000
"""A longer query is cut to its beginning."""
MAX_RECALLED = 100
MAX_SOURCE_CHARS = 256
_ID_CHARS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """The most memories of a namespace, and their greatest age in days (0: any). Beyond, the oldest are forgotten.

    Raises InvalidRequest for invalid limits.
    """

    per_namespace: int = 20_000
    max_age_days: float = 0.0

    def __post_init__(self) -> None:
        if self.per_namespace < 1:
            raise InvalidRequest(f"memory_limit is {self.per_namespace}", field="memory_limit", hint="at least 1")
        if self.max_age_days < 0:
            raise InvalidRequest(f"memory_age_days is {self.max_age_days}", field="memory_age_days", hint="at least 0")

    @property
    def interval(self) -> int:
        """New memories of a namespace between two checks of its size: it may exceed its limit by one percent."""
        return max(1, self.per_namespace // _SLACK)

    def too_old(self, memory: Memory, now: datetime) -> bool:
        """Whether a memory exceeds the maximum age."""
        return bool(self.max_age_days) and memory.created_at < moment(now - timedelta(days=self.max_age_days))


def moment(time: datetime) -> str:
    """A time as memories store it, so that texts sort as times do: UTC, ISO 8601, milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds")


def admitted(memory: Memory, mask: SecretMask, now: datetime) -> Memory:
    """A memory as it is stored: its secrets masked, its text well formed, its time no later than now.

    Raises InvalidRequest naming the field that is wrong.
    """
    check_identifier(memory.tenant, field="tenant")
    check_namespace(memory.namespace, field="namespace")
    # Checked before secrets are masked: masking a huge text takes long.
    check_length(memory.text, MAX_MEMORY_CHARS, field="text")
    check_length(memory.source, MAX_SOURCE_CHARS, field="source")
    text = mask(well_formed(memory.text)).strip()
    if not text:
        raise InvalidRequest("the memory is empty", field="text")
    # Masking may make the text longer.
    return replace(
        memory,
        text=text[:MAX_MEMORY_CHARS],
        metadata=admitted_metadata(memory.metadata, mask),
        source=mask(well_formed(" ".join(memory.source.split()))),
        created_at=_time(memory.created_at, now),
    )


def admitted_scope(scope: MemoryScope) -> MemoryScope:
    """The scope itself. Raises InvalidRequest naming the field that is wrong."""
    check_identifier(scope.tenant, field="tenant")
    check_namespaces(scope.namespaces, field="namespaces")
    check_metadata(scope.metadata)
    return scope


def admitted_ids(memory_ids: Collection[str]) -> frozenset[str]:
    """The ids. Raises InvalidRequest for an invalid one."""
    for text in memory_ids:
        if len(text) != _ID_CHARS or not set(text) <= set("0123456789abcdef"):
            fault = f"{text[:80]!r} is not a memory id"
            raise InvalidRequest(fault, field="memory_ids", hint="64 hexadecimal digits")
    return frozenset(memory_ids)


def admitted_query(query: str, limit: int) -> str:
    """A query as it is searched for; empty if it is blank. Raises InvalidRequest."""
    if not 1 <= limit <= MAX_RECALLED:
        raise InvalidRequest(f"limit is {limit}", field="limit", hint=f"from 1 to {MAX_RECALLED}")
    return " ".join(well_formed(query[:MAX_QUERY_CHARS]).split())


def admitted_metadata(metadata: Mapping[str, str], mask: SecretMask) -> dict[str, str]:
    """Metadata as it is stored. Raises InvalidRequest."""
    check_metadata(metadata)
    return {mask(well_formed(name)): mask(well_formed(value)) for name, value in sorted(metadata.items())}


def _time(text: str, now: datetime) -> str:
    if not text:
        return moment(now)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{text[:40]!r} is not a time", field="created_at", hint="ISO 8601, UTC") from None
    # A memory with a future time would outlive every limit.
    return moment(min(time if time.tzinfo else time.replace(tzinfo=UTC), now))


MAX_EMBEDDED_CHARS = 2_000
"""The characters of a text that are embedded; models read a few hundred tokens."""
EMBEDDED_AT_ONCE = 8
"""Few, so that a concurrent query does not wait for long."""
_SHORT_CHARS = 400
_SECONDS = 5.0
"""The timeout of an interactive call."""
_BATCH_SECONDS = 300.0
_PAUSE_SECONDS = 10.0
_REMEMBERED = 256
_HARMLESS = "memory"

_log = structlog.get_logger(__name__)


class Meaning:
    """Vectors of an `Embedder`, within limits of size and time.

    Args:
        embedder: Makes the vectors; None: there are none. After a failure, interactive calls get none for a while.
    """

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder
        self._away_until = 0.0
        self._fresh: dict[str, Sequence[float]] = {}

    @property
    def space(self) -> str:
        """The name of the vectors' space; empty: there are none."""
        return self._embedder.name if self._embedder is not None else ""

    async def of(self, text: str) -> Sequence[float]:
        """The vector of a text for an interactive call; empty if there is none now."""
        if self._embedder is None or time.monotonic() < self._away_until:
            return ()
        for chars in (MAX_EMBEDDED_CHARS, _SHORT_CHARS):
            try:
                (vector,) = await self._ask([text[:chars]], _SECONDS)
                return vector
            except ModelRejected as refusal:
                _log.warning("memory.not_embedded", chars=chars, reason=refusal.message)
            except ModelError as error:
                self._away_until = time.monotonic() + _PAUSE_SECONDS
                _log.warning("memory.embedder_away", reason=error.message)
                break
        return ()

    async def of_memory(self, memory: Memory) -> Sequence[float]:
        """The vector of a memory that is about to be stored; it is cached for the indexing."""
        vector = await self.of(memory.text)
        if len(vector):
            self._fresh[memory.memory_id] = vector
            while len(self._fresh) > _REMEMBERED:
                del self._fresh[next(iter(self._fresh))]
        return vector

    def fresh(self, memory: Memory) -> Sequence[float]:
        """Remove and return the vector that `of_memory` cached for a memory; empty if there is none."""
        return self._fresh.pop(memory.memory_id, ())

    async def of_all(self, memories: Sequence[Memory]) -> Mapping[str, Sequence[float]]:
        """Vectors by memory id, without refused texts. Raises ModelError if the embedder is unavailable.

        An embedder that refuses everything is set up wrongly, and counts as unavailable.
        """
        if not memories:
            return {}
        try:
            vectors = await self._ask([memory.text for memory in memories])
            by_id = {memory.memory_id: vector for memory, vector in zip(memories, vectors, strict=True)}
        except ModelRejected as refusal:
            by_id = await self._one_by_one(memories)
            if not by_id:
                _log.warning("memory.embedder_refuses", reason=refusal.message)
                await self._ask([_HARMLESS])
        self._away_until = 0.0
        return by_id

    async def _one_by_one(self, memories: Sequence[Memory]) -> dict[str, Sequence[float]]:
        vectors: dict[str, Sequence[float]] = {}
        for memory in memories:
            for chars in (MAX_EMBEDDED_CHARS, _SHORT_CHARS):
                try:
                    (vectors[memory.memory_id],) = await self._ask([memory.text[:chars]])
                    break
                except ModelRejected as refusal:
                    _log.warning("memory.not_embedded", memory_id=memory.memory_id, chars=chars, reason=refusal.message)
        return vectors

    async def _ask(self, texts: Sequence[str], seconds: float = _BATCH_SECONDS) -> Sequence[Sequence[float]]:
        if self._embedder is None:
            return ()
        try:
            async with asyncio.timeout(seconds):
                vectors = await self._embedder.embed([text[:MAX_EMBEDDED_CHARS] for text in texts])
        except TimeoutError:
            raise ModelError(f"no embeddings within {seconds:g} seconds") from None
        if len(vectors) != len(texts):
            raise ModelError(f"the embedder gave {len(vectors)} vectors for {len(texts)} texts")
        return vectors


_NEIGHBOURS = 5
_SPARE = 1_000
_COMPARED_CHARS = 300
_MOST_COUNTED = 10_000


def utc_now() -> datetime:
    """The present moment."""
    return datetime.now(UTC)


class Recalling:
    """Queries of a `MemoryIndex`: matches, existing memories, duplicates, and surplus.

    Args:
        index: The index to search.
        meaning: Makes the vectors, if there is an embedder.
        limits: The limits of number and age.
        clock: Returns the present time.
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
        """The memories that fit a query, best first; for an empty query, the newest.

        Raises InvalidRequest, Unavailable.
        """
        scope, question = admitted_scope(scope), admitted_query(query, limit)
        if not question:
            newest, now = await self._index.listed(scope, limit=limit), self._clock()
            return tuple(
                Recollection(memory=memory, score=0.0) for memory in newest if not self._limits.too_old(memory, now)
            )
        words, meaning = await asyncio.gather(
            self._index.search(scope, words=question, limit=CANDIDATES), self._by_meaning(question, scope)
        )
        # Ranking fifty long texts against a long query would block the event loop for too long.
        recollections = await asyncio.to_thread(
            fused, self._young(words), self._young(meaning), query=question, limit=MAX_NAMESPACES * limit
        )
        return _once(recollections)[:limit]

    async def holds(self, memory: Memory) -> bool:
        """Whether the index has this memory; a memory without searchable words is not found."""
        scope = MemoryScope(tenant=memory.tenant, namespaces=(memory.namespace,))
        matches = await self._index.search(scope, words=memory.text[:_COMPARED_CHARS], limit=CANDIDATES)
        return any(match.memory.memory_id == memory.memory_id for match in matches)

    async def near(self, memory: Memory, vector: Sequence[float]) -> Memory | None:
        """A near duplicate of a memory, if there is one."""
        scope = MemoryScope(tenant=memory.tenant, namespaces=(memory.namespace,))
        return near_duplicate(memory, await self._neighbours(scope, vector, limit=_NEIGHBOURS))

    async def surplus(self, memory: Memory) -> tuple[Memory, ...]:
        """The memories of its namespace that exceed the limits after this one; checked only now and then."""
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
        now, most = self._clock(), self._limits.per_namespace
        return tuple(each for number, each in enumerate(listed) if number >= most or self._limits.too_old(each, now))

    async def _by_meaning(self, text: str, scope: MemoryScope) -> tuple[MemoryMatch, ...]:
        vector = await self._meaning.of(text)
        return await self._neighbours(scope, vector, limit=CANDIDATES)

    async def _neighbours(self, scope: MemoryScope, vector: Sequence[float], *, limit: int) -> tuple[MemoryMatch, ...]:
        if not len(vector):
            return ()
        try:
            return await self._index.search(scope, vector=vector, space=self._meaning.space, limit=limit)
        except InvalidRequest as refusal:
            # The embedder has changed under the same name; words still work.
            _log.warning("memory.vector_refused", reason=refusal.message)
            return ()

    def _young(self, matches: Sequence[MemoryMatch]) -> list[MemoryMatch]:
        """The matches that are not too old."""
        now = self._clock()
        return [match for match in matches if not self._limits.too_old(match.memory, now)]


def _once(recollections: Sequence[Recollection]) -> tuple[Recollection, ...]:
    """The recollections, each text once although several namespaces may hold it."""
    texts: set[str] = set()
    distinct: list[Recollection] = []
    for recollection in recollections:
        text = " ".join(recollection.memory.text.split()).casefold()
        if text not in texts:
            texts.add(text)
            distinct.append(recollection)
    return tuple(distinct)
