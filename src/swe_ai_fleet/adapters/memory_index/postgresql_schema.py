"""The tables of the index in PostgreSQL, in a schema whose name carries their version and whose memories they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.rows import TupleRow

_SCHEMA = "fleet_memory_1"
_SOURCE = re.compile(r"[a-z0-9]{0,32}")

# Held while tables are made; any number does that others do not use.
_LOCK = 0x464D454D
_TABLES = """
CREATE TEXT SEARCH DICTIONARY stem (TEMPLATE = snowball, LANGUAGE = english);
CREATE TEXT SEARCH CONFIGURATION words (COPY = simple);
ALTER TEXT SEARCH CONFIGURATION words
    ALTER MAPPING FOR asciiword, word, numword WITH stem;
CREATE TABLE memory (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text COLLATE "C" NOT NULL UNIQUE,
    tenant text NOT NULL, namespace text NOT NULL, kind text NOT NULL, labels jsonb NOT NULL,
    created_at text COLLATE "C" NOT NULL, payload text NOT NULL, words tsvector NOT NULL
);
CREATE INDEX ON memory (tenant, namespace, created_at);
CREATE INDEX ON memory USING gin (labels jsonb_path_ops);
CREATE INDEX ON memory USING gin (words);
CREATE TABLE space (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE,
    dimension integer NOT NULL DEFAULT 0, position bigint NOT NULL DEFAULT 0
);
"""


def schema_of(source: str) -> str:
    """The schema for memories of one source. Raises InvalidRequest for what cannot be part of a name."""
    if not _SOURCE.fullmatch(source):
        raise InvalidRequest(f"{source[:40]!r} is no source of memories", field="source", hint="a-z and 0-9, up to 32")
    return f"{_SCHEMA}_{source}" if source else _SCHEMA


async def prepare(connection: AsyncConnection[TupleRow], schema: str) -> None:
    """Make the tables where there are none; the schema comes first in the search path. Raises PreconditionFailed."""
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    if await _there(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", schema):
        return
    if not await _there(connection, "SELECT 1 FROM pg_extension WHERE extname = %s", "vector"):
        if not await _there(connection, "SELECT 1 FROM pg_available_extensions WHERE name = %s", "vector"):
            raise PreconditionFailed("the PostgreSQL of memory_store has no pgvector", field="memory_store")
        await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    await connection.execute(f"CREATE SCHEMA {schema}".encode())
    await connection.execute(_TABLES)


async def space_table(connection: AsyncConnection[TupleRow], number: int, dimension: int) -> None:
    """Make the table of a space's vectors where there is none; the caller holds the space's row."""
    statement = """
    UPDATE space SET dimension = %s WHERE id = %s AND dimension = 0
    """
    if (await connection.execute(statement.encode(), (dimension, number))).rowcount:
        await connection.execute(
            f"CREATE TABLE vector_{number} (memory bigint PRIMARY KEY "
            f"REFERENCES memory ON DELETE CASCADE, vector vector({dimension}) NOT NULL)".encode()
        )


async def _there(connection: AsyncConnection[TupleRow], statement: str, name: str) -> bool:
    return await (await connection.execute(statement.encode(), (name,))).fetchone() is not None
