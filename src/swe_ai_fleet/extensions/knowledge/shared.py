"""Memories of a fleet: stored in a bucket that all replicas share, searched in an index of each replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Self

import structlog

from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.domain.memory import Memory, MemoryScope, Recollection
from swe_ai_fleet.extensions.knowledge.following import (
    BARRIER,
    Following,
    end,
    in_scope,
    key_of,
    loaded,
    memory_key,
)
from swe_ai_fleet.extensions.knowledge.memory_index import MemoryIndex
from swe_ai_fleet.extensions.knowledge.recalling import (
    Meaning,
    MemoryLimits,
    Recalling,
    admitted,
    admitted_ids,
    admitted_scope,
    utc_now,
)
from swe_ai_fleet.ports import Embedder, KeyValue, SecretMask

_SWEEP_SECONDS = 3_600.0
_AT_ONCE = 64

_log = structlog.get_logger(__name__)


class SharedMemories:
    """`Memories` in a `KeyValue` bucket. The bucket is the source of truth; the index only follows it.

    The same memory is stored once, however many replicas get it at the same time. The `recall` of this replica sees the
    effects of `remember` and `forget` at once, that of others soon. While the embedder is unavailable, memories are
    found by their words; their vectors are made later.
    """

    def __init__(
        self,
        store: KeyValue,
        index: MemoryIndex,
        *,
        mask: SecretMask,
        embedder: Embedder | None,
        limits: MemoryLimits,
        timeout: float,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._meaning = Meaning(embedder)
        self._following = Following(store, index, self._meaning)
        self._recalling = Recalling(index, self._meaning, limits, clock)
        self._mask = mask
        self._limits = limits
        self._timeout = timeout
        self._clock = clock

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        store: KeyValue,
        index: MemoryIndex,
        *,
        mask: SecretMask,
        embedder: Embedder | None = None,
        limits: MemoryLimits | None = None,
        timeout: float = 30.0,
        clock: Callable[[], datetime] = utc_now,
    ) -> AsyncGenerator[Self]:
        """Follow the bucket for as long as the context lasts.

        Args:
            store: Stores the memories. Only `SharedMemories` may write there.
            index: Searches them; it may be empty, or as an earlier process left it.
            mask: Hides secrets before anything is stored.
            embedder: Makes vectors; None: memories are found by their words.
            limits: The limits of number and age.
            timeout: Seconds to wait for the index.
            clock: Returns the present time.
        """
        limits = limits or MemoryLimits()
        memories = cls(store, index, mask=mask, embedder=embedder, limits=limits, timeout=timeout, clock=clock)
        following = memories._following
        await following.start()
        sweeping = asyncio.create_task(memories._sweep()) if limits.max_age_days else None
        try:
            yield memories
        finally:
            try:
                if sweeping is not None:
                    await end(sweeping)
            finally:
                await following.stop()

    def check(self) -> None:
        """Raises InternalFault if following has ended, so that the index becomes stale."""
        self._following.check()

    async def remember(self, memory: Memory) -> bool:
        """Store a memory, its secrets masked; False if it exists already. It is durable when this returns.

        Of near duplicates (see `near_duplicate`), the newer one stays. Raises InvalidRequest, ResourceExhausted,
        Unavailable; a retry is safe.
        """
        memory = admitted(memory, self._mask, self._clock())
        key = key_of(memory)
        if await self._is_stored(key):
            return False
        await self._following.caught_up(timeout=self._timeout)
        vector = await self._meaning.of_memory(memory)
        # Before this memory is stored: two concurrent duplicates must not replace each other.
        older = await self._recalling.near(memory, vector)
        if older is not None and older.created_at > memory.created_at:
            return False
        try:
            revision = await self._store.put(key, to_json(memory), revision=0)
        except Fenced:
            await self._is_stored(key)
            return False
        if older is not None:
            await self._store.delete(key_of(older))
            revision = await self._barrier()
        await self._reached(revision)
        await self._trim(memory)
        return True

    async def recall(self, query: str, scope: MemoryScope, *, limit: int = 3) -> tuple[Recollection, ...]:
        """The memories that fit a query, best first; may be empty. Raises InvalidRequest, Unavailable.

        Memories that any replica has erased are not among them.
        """
        await self._following.caught_up(timeout=self._timeout)
        recalled = await self._recalling.recall(query, scope, limit=limit)
        # An index may lag behind its bucket, especially one that several replicas write.
        entries = await asyncio.gather(*(self._store.get(key_of(each.memory)) for each in recalled))
        return tuple(each for each, entry in zip(recalled, entries, strict=True) if entry is not None)

    async def forget(self, scope: MemoryScope, memory_ids: Collection[str] = ()) -> int:
        """Erase these memories of a scope, or (none named) all of it; how many. Raises InvalidRequest, Unavailable.

        Their words are gone from the bucket when this returns, and from this replica's index.
        """
        scope, ids = admitted_scope(scope), admitted_ids(memory_ids)
        if ids and scope.namespaces:
            keys = [memory_key(scope.tenant, name, text) for name in scope.namespaces for text in sorted(ids)]
            memories = [memory async for memory in self._by_keys(keys) if in_scope(memory, scope)]
        else:
            memories = [
                memory
                async for memory in self._all()
                if in_scope(memory, scope) and (not ids or memory.memory_id in ids)
            ]
        await self._erase(memories)
        return len(memories)

    async def _is_stored(self, key: str) -> bool:
        """Whether a memory is stored; if so, it is in the index when this returns."""
        entry = await self._store.get(key)
        if entry is not None:
            await self._reached(entry.revision)
        return entry is not None

    async def _by_keys(self, keys: list[str]) -> AsyncIterator[Memory]:
        for start in range(0, len(keys), _AT_ONCE):
            for entry in await asyncio.gather(*(self._store.get(key) for key in keys[start : start + _AT_ONCE])):
                if entry is not None and (memory := loaded(entry.key, entry.value)) is not None:
                    yield memory

    async def _all(self) -> AsyncIterator[Memory]:
        async with aclosing(self._store.changes()) as changes:
            async for change in changes:
                if change is not None and change.value is not None:
                    memory = loaded(change.key, change.value)
                    if memory is not None:
                        yield memory

    async def _erase(self, memories: Collection[Memory]) -> None:
        if not memories:
            return
        keys = [key_of(memory) for memory in memories]
        for start in range(0, len(keys), _AT_ONCE):
            await asyncio.gather(*(self._store.delete(key) for key in keys[start : start + _AT_ONCE]))
        await self._reached(await self._barrier())

    async def _barrier(self) -> int:
        return await self._store.put(BARRIER, b"")

    async def _reached(self, revision: int) -> None:
        await self._following.reached(revision, timeout=self._timeout)

    async def _trim(self, memory: Memory) -> None:
        try:
            await self._erase(await self._recalling.surplus(memory))
        except FleetError as error:
            # The memory is stored anyway; the next one tries again.
            _log.warning("memory.not_trimmed", namespace=memory.namespace, reason=error.message)

    async def _sweep(self) -> None:
        """Erase expired memories every hour; until then they are not recalled."""
        while True:
            try:
                now = self._clock()
                await self._erase([memory async for memory in self._all() if self._limits.too_old(memory, now)])
            except FleetError as error:
                _log.warning("memory.not_swept", reason=error.message)
            except Exception:
                # Nothing awaits this task, so its failure is logged here.
                _log.exception("memory.never_swept_again")
                raise
            await asyncio.sleep(_SWEEP_SECONDS)
