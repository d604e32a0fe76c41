"""Memories as settings want them: the bucket that all replicas share, an index of this one, an embedder."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.memory_index import open_memory_index
from swe_ai_fleet.memory.limits import MemoryLimits
from swe_ai_fleet.memory.records import origin
from swe_ai_fleet.memory.shared import SharedMemories
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.runtime.embeddings import configured_embedder
from swe_ai_fleet.settings import Settings

MEMORIES_BUCKET = "agent-memories"


@asynccontextmanager
async def open_memories(settings: Settings, log: JetStream, *, mask: SecretMask) -> AsyncGenerator[SharedMemories]:
    """What the fleet remembers, until the context ends.

    Raises InvalidRequest naming a malformed setting, PreconditionFailed where the index cannot be used, Unavailable.
    """
    limits = MemoryLimits(per_namespace=settings.memory_limit, max_age_days=settings.memory_age_days)
    bucket = await log.bucket(MEMORIES_BUCKET)
    # An index follows one bucket: where NATS was begun anew, so is the index.
    source = await origin(bucket)
    directory = settings.home / "memory" / source
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        index = await stack.enter_async_context(open_memory_index(settings.memory_store, directory, source=source))
        embedder = await stack.enter_async_context(configured_embedder(settings))
        yield await stack.enter_async_context(
            SharedMemories.open(bucket, index, mask=mask, embedder=embedder, limits=limits)
        )
