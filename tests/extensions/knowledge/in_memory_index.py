"""An index of memories in memory, as strict as the real ones: BM25, and vectors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain

from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.extensions.knowledge.following import in_scope
from swe_ai_fleet.extensions.knowledge.memory_index import (
    bounded,
    check_dimension,
    check_search,
    query_words,
    terms,
    unit,
)
from swe_ai_fleet.extensions.knowledge.ranking import Match, stem

_K1 = 1.2
_B = 0.75


def bm25(query: Sequence[str], documents: Sequence[Sequence[str]], *, total: int = 0) -> list[float]:
    """How well each document fits the query, 0 where it shares no term with it.

    Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the weight of a term
    that Lucene uses, which is never negative.

    Args:
        query: Distinct terms.
        documents: The terms of each document; all that have a term of the query.
        total: How many documents there are, where more than these.
    """
    total = max(total, len(documents))
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
            ratings = bm25(tuple(dict.fromkeys(map(stem, query_words(words)))), [self._terms[key] for key in held])
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
