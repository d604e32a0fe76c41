"""Long-term memory of those who use the library without a fleet: a file under `home`, open for all namespaces."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from swe_ai_fleet.adapters.memory_index.sqlite import SqliteMemoryIndex
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.memory.kept import KeptMemories
from swe_ai_fleet.memory.limits import MemoryLimits
from swe_ai_fleet.ports import Memories, SecretMask
from swe_ai_fleet.runtime.embeddings import configured_embedder
from swe_ai_fleet.settings import Settings


@asynccontextmanager
async def open_library_memory(settings: Settings, mask: SecretMask) -> AsyncGenerator[Memories]:
    """The memory that `MemoryManager` keeps under the same home, until the context ends. Raises Unavailable."""
    limits = MemoryLimits(per_namespace=settings.memory_limit, max_age_days=settings.memory_age_days)
    async with AsyncExitStack() as stack:
        index = await stack.enter_async_context(SqliteMemoryIndex.open(settings.home / "memory" / "library.db"))
        embedder = await stack.enter_async_context(configured_embedder(settings))
        yield await stack.enter_async_context(
            KeptMemories.open(index, tenant=DEFAULT_TENANT, mask=mask, embedder=embedder, limits=limits)
        )
