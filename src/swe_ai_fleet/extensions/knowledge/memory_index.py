"""The index that memories are searched in: an SQLite file, or PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.extensions.knowledge.ranking import MemoryMatch

FILE_NAME = "memory-index.db"


class MemoryIndex(Protocol):
    """An index of memories; it can be rebuilt from its source.

    Vectors belong to a space, the name of their embedder (empty: none): only vectors of the same space are compared.
    """

    async def put(
        self, memories: Sequence[tuple[Memory, Sequence[float] | None]], *, space: str = "", position: int = 0
    ) -> None:
        """Store memories, with their vectors of this space; None keeps an earlier vector.

        `position` is how far the source was read (0: unchanged), stored for the space together with the memories.
        Raises InvalidRequest, Unavailable.
        """
        ...

    async def remove(self, memory_ids: Collection[str], *, space: str = "", position: int = 0) -> None:
        """Remove memories with their words and their vectors of all spaces. Raises Unavailable."""
        ...

    async def search(
        self, scope: MemoryScope, *, words: str = "", vector: Sequence[float] = (), space: str = "", limit: int = 10
    ) -> tuple[MemoryMatch, ...]:
        """The memories that fit either the words (BM25) or the vector of this space (cosine), best first.

        Raises InvalidRequest, Unavailable.
        """
        ...

    async def listed(self, scope: MemoryScope, *, limit: int = 1000) -> tuple[Memory, ...]:
        """The memories of a scope, the newest first. Raises Unavailable."""
        ...

    async def position(self, space: str) -> int:
        """How far the source was read with vectors of that space (empty: of any); 0 for a new index."""
        ...


@asynccontextmanager
async def open_memory_index(where: str, home: Path, *, source: str = "") -> AsyncGenerator[MemoryIndex]:
    """The index of memories that the setting `memory_store` names, open within the context.

    Args:
        where: Empty (a file under `home`) or `postgresql://…`.
        home: The directory of the file.
        source: The identity of the source of the memories, lower-case letters and digits; in a database of several
            fleets, each source has its own schema.

    Raises InvalidRequest for any other `where`, PreconditionFailed if a package is missing or the file or schema is no
    index, Unavailable.
    """
    scheme, _, rest = where.partition(":")
    if not where:
        from swe_ai_fleet.extensions.knowledge.sqlite_index import SqliteMemoryIndex

        async with SqliteMemoryIndex.open(home / FILE_NAME) as index:
            yield index
    elif scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from swe_ai_fleet.extensions.knowledge.postgresql_index import PostgresqlMemoryIndex

        async with PostgresqlMemoryIndex.open(where, source=source) as index:
            yield index
    else:
        # Not quoted: the setting may contain a password.
        raise InvalidRequest(
            "memory_store is not a valid place for memories",
            field="memory_store",
            hint="leave it empty for a file of the fleet, or use postgresql://user:password@host/database",
        )
