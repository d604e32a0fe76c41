"""Long-term memory of those who use the library without a fleet: a file under `home`, open for all namespaces."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from swe_ai_fleet.adapters.memory_index.sqlite import SqliteMemoryIndex
from swe_ai_fleet.domain.errors import ModelError
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.memory.kept import KeptMemories
from swe_ai_fleet.memory.limits import MemoryLimits
from swe_ai_fleet.ports import Embedder, Memories, SecretMask
from swe_ai_fleet.runtime.embeddings import open_embedder
from swe_ai_fleet.settings import Settings

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_library_memory(settings: Settings, mask: SecretMask) -> AsyncGenerator[Memories]:
    """The memory that `MemoryManager` keeps under the same home, until the context ends. Raises Unavailable."""
    limits = MemoryLimits(per_namespace=settings.memory_limit, max_age_days=settings.memory_age_days)
    async with AsyncExitStack() as stack:
        index = await stack.enter_async_context(SqliteMemoryIndex.open(settings.home / "memory" / "library.db"))
        embedder: Embedder | None = None
        try:
            embedder = await stack.enter_async_context(
                open_embedder(
                    settings.embeddings,
                    url=settings.embeddings_url,
                    model=settings.embeddings_model,
                    api_key=settings.embeddings_api_key,
                )
            )
        except ModelError as error:
            _log.warning("memory.embedder_away", reason=error.message)
        yield await stack.enter_async_context(
            KeptMemories.open(index, tenant=DEFAULT_TENANT, mask=mask, embedder=embedder, limits=limits)
        )
