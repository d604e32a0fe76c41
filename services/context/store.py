"""Memories as settings want them: the bucket that all replicas share, an index of this one, an embedder."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.memory_index import open_memory_index
from swe_ai_fleet.domain.errors import ModelError
from swe_ai_fleet.memory.limits import MemoryLimits
from swe_ai_fleet.memory.records import origin
from swe_ai_fleet.memory.shared import SharedMemories
from swe_ai_fleet.ports import Embedder, SecretMask
from swe_ai_fleet.runtime.embeddings import open_embedder
from swe_ai_fleet.settings import Settings

MEMORIES_BUCKET = "agent-memories"
_log = structlog.get_logger(__name__)


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
        embedder = await _embedder(stack, settings)
        yield await stack.enter_async_context(
            SharedMemories.open(bucket, index, mask=mask, embedder=embedder, limits=limits)
        )


async def _embedder(stack: AsyncExitStack, settings: Settings) -> Embedder | None:
    """What gives memories their vectors; without it they are found by their words."""
    try:
        return await stack.enter_async_context(
            open_embedder(
                settings.embeddings,
                url=settings.embeddings_url,
                model=settings.embeddings_model,
                api_key=settings.embeddings_api_key,
            )
        )
    except ModelError as error:
        _log.warning("memory.embedder_away", reason=error.message)
        return None
