"""An index of memories in Chroma."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

from swe_ai_fleet.adapters.memory_index.bm25 import bm25
from swe_ai_fleet.adapters.memory_index.checks import bounded, check_dimension, check_search, unit
from swe_ai_fleet.adapters.memory_index.chroma_store import ChromaStore
from swe_ai_fleet.adapters.memory_index.record import dumped, loaded, storable
from swe_ai_fleet.adapters.memory_index.words import query_terms, terms
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.ports import Match

_MEMORIES = "memories"
_POSITIONS = "positions"
_VECTORS = "vectors-"
_READ_FOR_WORDS = 5_000
# Chroma keeps no record without a vector.
_NO_VECTOR = [1.0]

Labels = dict[str, str | int | None]


class ChromaMemoryIndex:
    """A `MemoryIndex` in a directory of Chroma's, for one process.

    Chroma filters by words but does not rank by them: the memories that share a word with the query (5,000 at most)
    are read and ranked here, by BM25. It has no transactions either: a position is written behind what was put, so
    that a process that dies between the two only reads its source again. Its vectors are found by HNSW, approximately,
    and one by one where that comes by too few of a scope.
    """

    def __init__(self, store: ChromaStore) -> None:
        self._store = store

    @classmethod
    @asynccontextmanager
    async def open(cls, directory: Path) -> AsyncGenerator[ChromaMemoryIndex]:
        """The index in this directory, made where there is none; nothing is told to anybody.

        Raises PreconditionFailed where Chroma is not installed, the directory is in use or holds something else.
        """
        async with ChromaStore(directory) as store:
            yield cls(store)

    async def put(
        self, memories: Sequence[tuple[Memory, Sequence[float] | None]], *, space: str = "", position: int = 0
    ) -> None:
        """Take memories in, with their vectors, then the position. Raises InvalidRequest, PreconditionFailed."""
        latest = {memory.memory_id: memory for memory, _ in memories}
        vectors = {memory.memory_id: unit(vector) for memory, vector in memories if vector is not None}
        vectors = {key: direction for key, direction in vectors.items() if direction}

        def work() -> None:
            mine = self._store.collection(_vectors(space), space="cosine") if vectors else None
            if mine is not None:
                known = mine.get(limit=1, include=["embeddings"])["embeddings"]
                dimension = len(known[0]) if len(known) else len(next(iter(vectors.values())))
                for direction in vectors.values():
                    check_dimension(space, dimension, direction)
            for keys in _batches(latest, self._store.batch):
                self._put(keys, latest)
            for keys in _batches(vectors, self._store.batch):
                assert mine is not None
                labels = [_labels(latest[key]) for key in keys]
                mine.upsert(ids=keys, embeddings=[vectors[key] for key in keys], metadatas=labels)
            self._advance(space, position)

        await self._store.run(work)

    async def remove(self, memory_ids: Collection[str], *, space: str = "", position: int = 0) -> None:
        """Forget memories, words and the vectors of all spaces. Raises PreconditionFailed."""

        def work() -> None:
            for keys in _batches(set(memory_ids), self._store.batch):
                for name in self._store.names():
                    if name == _MEMORIES or name.startswith(_VECTORS):
                        collection = self._store.collection(name)
                        if there := collection.get(ids=keys, include=[])["ids"]:
                            collection.delete(ids=there)
            self._advance(space, position)

        await self._store.run(work)

    async def search(
        self, scope: MemoryScope, *, words: str = "", vector: Sequence[float] = (), space: str = "", limit: int = 10
    ) -> tuple[Match, ...]:
        """The memories that fit best, by words or by a vector. Raises InvalidRequest, PreconditionFailed.

        The score of words is BM25, that of a vector the cosine.
        """
        check_search(words, vector)
        limit, direction, wanted = bounded(limit), unit(vector), query_terms(words)
        if not limit or not (direction or wanted):
            return ()

        def work() -> tuple[Match, ...]:
            found = self._by_words(scope, wanted, limit) if wanted else self._by_vector(scope, space, direction, limit)
            return tuple(Match(memory=loaded(payload), score=score) for payload, score in found)

        return await self._store.run(work)

    async def listed(self, scope: MemoryScope, *, limit: int = 1000) -> tuple[Memory, ...]:
        """What a scope holds, the newest first. Raises PreconditionFailed."""

        def work() -> tuple[Memory, ...]:
            found = self._store.collection(_MEMORIES).get(where=_within(scope), include=["metadatas"])
            held = [loaded(labels["payload"]) for labels in found["metadatas"]]
            held.sort(key=lambda memory: memory.memory_id)
            held.sort(key=lambda memory: memory.created_at, reverse=True)
            return tuple(held[: max(0, limit)])

        return await self._store.run(work)

    async def position(self, space: str) -> int:
        """How far its source was read with vectors of that space (empty: at all). Raises PreconditionFailed."""

        def work() -> list[int]:
            query = {"ids": [_digest(space)]} if space else {}
            found = self._store.collection(_POSITIONS).get(**query, include=["metadatas"])
            return [labels["position"] for labels in found["metadatas"]]

        return max(await self._store.run(work), default=0)

    def _put(self, keys: list[str], memories: Mapping[str, Memory]) -> None:
        held = self._store.collection(_MEMORIES)
        there = held.get(ids=keys, include=["metadatas"])
        before: dict[str, Mapping[str, object]] = dict(zip(there["ids"], there["metadatas"], strict=True))
        # What a record had and is not told to lose, it keeps.
        gone = {key: Labels.fromkeys(before.get(key, {})) for key in keys}
        labels = {key: gone[key] | _labels(memories[key]) for key in keys}
        held.upsert(
            ids=keys,
            embeddings=[_NO_VECTOR] * len(keys),
            documents=[f" {' '.join(terms(memories[key].text))} " for key in keys],
            metadatas=[labels[key] | {"payload": dumped(memories[key])} for key in keys],
        )
        for name in self._store.names():
            if before and name.startswith(_VECTORS):
                collection = self._store.collection(name)
                if same := collection.get(ids=list(before), include=[])["ids"]:
                    changed = [{name: labels[key][name] for name in labels[key] if name != "payload"} for key in same]
                    collection.update(ids=same, metadatas=changed)

    def _by_words(self, scope: MemoryScope, wanted: Sequence[str], limit: int) -> list[tuple[str, float]]:
        collection = self._store.collection(_MEMORIES)
        found = collection.get(
            where=_within(scope),
            where_document=_one_of("$or", [{"$contains": f" {term} "} for term in wanted]),
            include=["documents", "metadatas"],
            limit=_READ_FOR_WORDS,
        )
        scores = bm25(wanted, [text.split() for text in found["documents"]], total=collection.count())
        ranked = sorted(zip(scores, found["ids"], found["metadatas"], strict=True), key=lambda one: (-one[0], one[1]))
        return [(labels["payload"], score) for score, _, labels in ranked[:limit]]

    def _by_vector(self, scope: MemoryScope, space: str, direction: list[float], limit: int) -> list[tuple[str, float]]:
        name = _vectors(space)
        if name not in self._store.names():
            return []
        collection = self._store.collection(name)
        known = collection.get(limit=1, include=["embeddings"])["embeddings"]
        if not len(known) or len(known[0]) != len(direction):
            return []
        asked = {"query_embeddings": [direction], "n_results": min(limit, collection.count()), "where": _within(scope)}
        found = collection.query(**asked, include=["distances"])
        scores = {key: 1 - distance for key, distance in zip(found["ids"][0], found["distances"][0], strict=True)}
        if len(scores) < limit:
            # Either there are no more, or the filter left too few of those that HNSW came by.
            every = collection.get(where=_within(scope), include=["embeddings"])
            scores = {}
            if every["ids"]:
                scores = dict(zip(every["ids"], (every["embeddings"] @ direction).tolist(), strict=True))
        if not scores:
            return []
        best = sorted(scores, key=lambda key: (-scores[key], key))[:limit]
        held = self._store.collection(_MEMORIES).get(ids=best, include=["metadatas"])
        payloads = {key: labels["payload"] for key, labels in zip(held["ids"], held["metadatas"], strict=True)}
        return [(payloads[key], scores[key]) for key in best if key in payloads]

    def _advance(self, space: str, position: int) -> None:
        if position:
            labels = {"space": storable(space) or "-", "position": position}
            positions = self._store.collection(_POSITIONS)
            positions.upsert(ids=[_digest(space)], embeddings=[_NO_VECTOR], metadatas=[labels])


def _labels(memory: Memory) -> Labels:
    """What a scope asks for."""
    labels: Labels = {"tenant": storable(memory.tenant), "namespace": storable(memory.namespace)}
    labels["kind"] = memory.kind.value
    return labels | {_label(name, value): 1 for name, value in memory.metadata.items()}


def _within(scope: MemoryScope) -> object:
    conditions: list[object] = [{"tenant": storable(scope.tenant)}]
    for name, allowed in (("namespace", scope.namespaces), ("kind", scope.kinds)):
        if allowed:
            conditions.append({name: {"$in": [storable(one) for one in allowed]}})
    conditions.extend({_label(name, value): 1} for name, value in scope.metadata.items())
    return _one_of("$and", conditions)


def _one_of(operator: str, conditions: Sequence[object]) -> object:
    """Chroma wants two conditions at least behind an operator."""
    return {operator: conditions} if len(conditions) > 1 else conditions[0]


def _label(name: str, value: str) -> str:
    # A digest, since not every text is a name to Chroma.
    return f"label-{_digest(f'{len(name)} {name}{value}')}"


def _vectors(space: str) -> str:
    return f"{_VECTORS}{_digest(space)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _batches(keys: Iterable[str], size: int) -> Iterable[list[str]]:
    remaining = iter(keys)
    while batch := list(islice(remaining, size)):
        yield batch
