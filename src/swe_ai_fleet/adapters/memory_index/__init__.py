"""Where memories are searched: an SQLite file or PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.ports import MemoryIndex

__all__ = ["FILE_NAME", "open_memory_index"]

FILE_NAME = "memory-index.db"


@asynccontextmanager
async def open_memory_index(where: str, home: Path, *, source: str = "") -> AsyncGenerator[MemoryIndex]:
    """The index of memories that the setting `memory_store` names, open within the context.

    Args:
        where: Empty (a file under `home`) or `postgresql://…`.
        home: Where a file of this source's is, if it is to be a file.
        source: What tells the memories that are followed from all others, lower-case letters and digits; in a database
            that several fleets name, each has a part of its own.

    Raises InvalidRequest for anything else, PreconditionFailed where a package is missing or what stands there is no
    index, Unavailable.
    """
    scheme, _, rest = where.partition(":")
    if not where:
        from swe_ai_fleet.adapters.memory_index.sqlite import SqliteMemoryIndex

        async with SqliteMemoryIndex.open(home / FILE_NAME) as index:
            yield index
    elif scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from swe_ai_fleet.adapters.memory_index.postgresql import PostgresqlMemoryIndex

        async with PostgresqlMemoryIndex.open(where, source=source) as index:
            yield index
    else:
        # What was given may hold a password.
        raise InvalidRequest(
            "memory_store is not a valid place for memories",
            field="memory_store",
            hint="leave it empty for a file of the fleet, or use postgresql://user:password@host/database",
        )
