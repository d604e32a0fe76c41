"""Memories in an index that is their only store: for one program, or several on one machine, without a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Self

import structlog

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.memory import Memory, MemoryScope, Recollection
from swe_ai_fleet.memory.admission import MemoryLimits, admitted, admitted_ids, admitted_scope
from swe_ai_fleet.memory.following import end, put_with_vectors
from swe_ai_fleet.memory.recalling import EMBEDDED_AT_ONCE, Meaning, Recalling, utc_now
from swe_ai_fleet.ports import Embedder, MemoryIndex, SecretMask

_ALL = 1_000_000

_log = structlog.get_logger(__name__)


class KeptMemories:
    """`Memories` that a `MemoryIndex` keeps, such as a file that lasts.

    The index's position is odd while some memories may lack their vectors, another odd number after each such memory:
    the next process that opens it with an embedder makes the vectors.
    """

    def __init__(
        self,
        index: MemoryIndex,
        recalling: Recalling,
        *,
        meaning: Meaning,
        mask: SecretMask,
        clock: Callable[[], datetime],
    ) -> None:
        self._index = index
        self._recalling = recalling
        self._meaning = meaning
        self._mask = mask
        self._clock = clock
        self._writing = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        index: MemoryIndex,
        *,
        tenant: str,
        mask: SecretMask,
        embedder: Embedder | None = None,
        limits: MemoryLimits | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> AsyncGenerator[Self]:
        """Use an index as a store; missing vectors of a tenant's memories are made in the background.

        Args:
            index: Stores the memories. No follower may write into it.
            tenant: Whose memories get their missing vectors.
            mask: Hides secrets before anything is kept.
            embedder: Gives vectors; None: memories are found by their words.
            limits: Of number and age.
            clock: What time it is.
        """
        meaning = Meaning(embedder)
        recalling = Recalling(index, meaning, limits or MemoryLimits(), clock)
        memories = cls(index, recalling, meaning=meaning, mask=mask, clock=clock)
        # No task group: the context may be entered by one task and left by another.
        catching_up = asyncio.create_task(memories.catch_up(tenant))
        try:
            yield memories
        finally:
            await end(catching_up)

    async def catch_up(self, tenant: str) -> None:
        """Make the vectors that a tenant's memories lack, as far as the embedder answers."""
        space = self._meaning.space
        if not space:
            return
        try:
            position = await self._index.position(space)
            if position and position % 2 == 0:
                return
            listed = await self._index.listed(MemoryScope(tenant=tenant), limit=_ALL)
            for start in range(0, len(listed), EMBEDDED_AT_ONCE):
                some = listed[start : start + EMBEDDED_AT_ONCE]
                vectors = await self._meaning.of_all(some)
                async with self._writing:
                    # Memories that were deleted in the meantime must not come back.
                    held = [memory for memory in some if await self._recalling.holds(memory)]
                    pairs = [(memory, vectors.get(memory.memory_id)) for memory in held]
                    await put_with_vectors(self._index, pairs, space=space)
            async with self._writing:
                # Otherwise a memory was stored without its vector since the listing.
                if await self._index.position(space) == position:
                    await self._index.put((), space=space, position=position + 2 - position % 2)
        except FleetError as error:
            _log.warning("memory.vectors_wait", reason=error.message)

    async def remember(self, memory: Memory) -> bool:
        """Store a memory, its secrets masked; False where it exists already. It is durable when this returns.

        Of near duplicates (see `near_duplicate`) the one of the later date stays. Raises InvalidRequest,
        ResourceExhausted, Unavailable.
        """
        memory = admitted(memory, self._mask, self._clock())
        if await self._recalling.holds(memory):
            return False
        vector = await self._meaning.of_memory(memory)
        space = self._meaning.space
        async with self._writing:
            if await self._recalling.holds(memory):
                return False
            older = await self._recalling.near(memory, vector)
            if older is not None and older.created_at > memory.created_at:
                return False
            if len(vector):
                await put_with_vectors(self._index, [(memory, vector)], space=space)
            else:
                position = await self._index.position(space) if space else 0
                odd = position + 1 + position % 2 if space else 0
                await self._index.put([(memory, None)], space=space, position=odd)
            if older is not None:
                await self._index.remove([older.memory_id])
            surplus = await self._recalling.surplus(memory)
            if surplus:
                await self._index.remove([memory.memory_id for memory in surplus])
        return True

    async def recall(self, query: str, scope: MemoryScope, *, limit: int = 3) -> tuple[Recollection, ...]:
        """The memories that fit a query, best first; may be empty. Raises InvalidRequest, Unavailable."""
        return await self._recalling.recall(query, scope, limit=limit)

    async def forget(self, scope: MemoryScope, memory_ids: Collection[str] = ()) -> int:
        """Erase these memories of a scope, or (none named) all of it; how many. Raises InvalidRequest, Unavailable."""
        scope, wanted = admitted_scope(scope), admitted_ids(memory_ids)
        async with self._writing:
            listed = await self._index.listed(scope, limit=_ALL)
            ids = [memory.memory_id for memory in listed if not wanted or memory.memory_id in wanted]
            if ids:
                await self._index.remove(ids)
        return len(ids)
