"""Stores in memory, as strict as the real ones: changes of projects, an index of memories (BM25), values by key."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from itertools import chain

from swe_ai_fleet.adapters.memory_index.record import bounded, check_dimension, check_search, query_terms, terms, unit
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.context import Change, KnowledgeErased, StoredChange, WorkRecorded
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.in_process import MemoryKeyValue as MemoryKeyValue
from swe_ai_fleet.memory.following import in_scope
from swe_ai_fleet.ports import Match

_K1 = 1.2
_B = 0.75


def bm25(query: Sequence[str], documents: Sequence[Sequence[str]]) -> list[float]:
    """How well each document fits the query, 0 where it shares no term with it.

    Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the weight of a term
    that Lucene uses, which is never negative.

    Args:
        query: Distinct terms.
        documents: The terms of each document; all that have a term of the query.
    """
    total = len(documents)
    counts = [Counter(document) for document in documents]
    average = sum(len(document) for document in documents) / len(documents) if documents else 0.0
    scores = [0.0] * len(documents)
    for term in query:
        having = sum(1 for count in counts if term in count)
        weight = math.log(1 + (total - having + 0.5) / (having + 0.5))
        for number, count in enumerate(counts):
            if frequency := count[term]:
                length = _K1 * (1 - _B + _B * len(documents[number]) / average)
                scores[number] += weight * frequency * (_K1 + 1) / (frequency + length)
    return scores


class MemoryChanges:
    """A `ChangeLog` of one process; changes go through the codec as they do on the wire."""

    def __init__(self) -> None:
        self._changes: list[bytes] = []
        self._versions: dict[tuple[str, str], int] = {}
        self._recorded: set[tuple[str, str]] = set()
        self._changed = asyncio.Event()

    async def append(self, change: Change) -> StoredChange:
        """Write a change. Raises Fenced where its version is not the next, AlreadyExists for a second record."""
        # As over a network, others get their turn before it is decided.
        await asyncio.sleep(0)
        if isinstance(change.body, WorkRecorded):
            execution = (change.tenant, change.body.record.execution_id)
            if execution in self._recorded:
                raise AlreadyExists(f"execution {execution[1]} is already recorded")
            self._recorded.add(execution)
        elif not isinstance(change.body, KnowledgeErased):
            story = (change.tenant, change.story_id)
            if change.version != self._versions.get(story, 0) + 1:
                raise Fenced(f"version {change.version} is not the next of story {change.story_id}")
            self._versions[story] = change.version
        self._changes.append(to_json(change))
        self._changed.set()
        self._changed = asyncio.Event()
        return StoredChange(sequence=len(self._changes), change=change)

    async def read(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredChange | None, None]:
        """The changes from a sequence number on; with `follow` a None after those stored before, and no end."""
        position, until = max(from_sequence, 1), len(self._changes)
        while position <= until:
            yield self._stored(position)
            position += 1
        if not follow:
            return
        yield None
        while True:
            changed = self._changed
            while position <= len(self._changes):
                yield self._stored(position)
                position += 1
                changed = self._changed
            await changed.wait()

    def _stored(self, sequence: int) -> StoredChange:
        return StoredChange(sequence=sequence, change=from_json(Change, self._changes[sequence - 1]))


class InMemoryIndex:
    """A `MemoryIndex` of one process, which forgets with it."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}
        self._terms: dict[str, list[str]] = {}
        self._vectors: dict[str, dict[str, list[float]]] = {}
        self._positions: dict[str, int] = {}

    async def put(
        self, memories: Sequence[tuple[Memory, Sequence[float] | None]], *, space: str = "", position: int = 0
    ) -> None:
        """Take memories in, with their vectors. Raises InvalidRequest; then nothing has changed."""
        known = self._vectors.get(space, {})
        vectors = {memory.memory_id: unit(vector) for memory, vector in memories if vector is not None}
        vectors = {key: vector for key, vector in vectors.items() if vector}
        for vector in vectors.values():
            check_dimension(space, len(next(chain(known.values(), vectors.values()))), vector)
        self._memories |= {memory.memory_id: memory for memory, _ in memories}
        self._terms |= {memory.memory_id: terms(memory.text) for memory, _ in memories}
        self._vectors[space] = known | vectors
        if position:
            self._positions[space] = position

    async def remove(self, memory_ids: Collection[str], *, space: str = "", position: int = 0) -> None:
        """Forget memories, words and the vectors of all spaces."""
        for memory_id in memory_ids:
            for kept in (self._memories, self._terms, *self._vectors.values()):
                kept.pop(memory_id, None)
        if position:
            self._positions[space] = position

    async def search(
        self, scope: MemoryScope, *, words: str = "", vector: Sequence[float] = (), space: str = "", limit: int = 10
    ) -> tuple[Match, ...]:
        """The memories that fit best, by words or by a vector. Raises InvalidRequest."""
        check_search(words, vector)
        held = {key: memory for key, memory in self._memories.items() if in_scope(memory, scope)}
        if wanted := unit(vector):
            vectors = self._vectors.get(space, {})
            scores = {
                key: sum(map(float.__mul__, wanted, vectors[key]))
                for key in held
                if key in vectors and len(vectors[key]) == len(wanted)
            }
        else:
            ratings = bm25(query_terms(words), [self._terms[key] for key in held])
            scores = {key: score for key, score in zip(held, ratings, strict=True) if score > 0}
        best = sorted(scores, key=lambda key: (-scores[key], key))[: bounded(limit)]
        return tuple(Match(memory=held[key], score=scores[key]) for key in best)

    async def listed(self, scope: MemoryScope, *, limit: int = 1000) -> tuple[Memory, ...]:
        """What a scope holds, the newest first."""
        held = [memory for memory in self._memories.values() if in_scope(memory, scope)]
        held.sort(key=lambda memory: memory.memory_id)
        held.sort(key=lambda memory: memory.created_at, reverse=True)
        return tuple(held[: max(0, limit)])

    async def position(self, space: str) -> int:
        """How far its source was read with vectors of that space; empty: at all."""
        return self._positions.get(space, 0) if space else max(self._positions.values(), default=0)
