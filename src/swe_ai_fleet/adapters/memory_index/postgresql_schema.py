"""The tables of the index in PostgreSQL, in a schema whose name carries their version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swe_ai_fleet.domain.errors import PreconditionFailed

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.rows import TupleRow

SCHEMA = "fleet_memory_1"

# Held while tables are made; any number does that others do not use.
_LOCK = 0x464D454D
_TABLES = f"""
CREATE SCHEMA {SCHEMA};
CREATE TEXT SEARCH DICTIONARY {SCHEMA}.stem (TEMPLATE = snowball, LANGUAGE = english);
CREATE TEXT SEARCH CONFIGURATION {SCHEMA}.words (COPY = simple);
ALTER TEXT SEARCH CONFIGURATION {SCHEMA}.words
    ALTER MAPPING FOR asciiword, word, numword WITH {SCHEMA}.stem;
CREATE TABLE {SCHEMA}.memory (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text COLLATE "C" NOT NULL UNIQUE,
    tenant text NOT NULL, namespace text NOT NULL, kind text NOT NULL, labels jsonb NOT NULL,
    created_at text COLLATE "C" NOT NULL, payload text NOT NULL, words tsvector NOT NULL
);
CREATE INDEX ON {SCHEMA}.memory (tenant, namespace, created_at);
CREATE INDEX ON {SCHEMA}.memory USING gin (labels jsonb_path_ops);
CREATE INDEX ON {SCHEMA}.memory USING gin (words);
CREATE TABLE {SCHEMA}.space (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE,
    dimension integer NOT NULL DEFAULT 0, position bigint NOT NULL DEFAULT 0
);
"""


async def prepare(connection: AsyncConnection[TupleRow]) -> None:
    """Make the tables where there are none. Raises PreconditionFailed without pgvector."""
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    if await _there(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", SCHEMA):
        return
    if not await _there(connection, "SELECT 1 FROM pg_extension WHERE extname = %s", "vector"):
        if not await _there(connection, "SELECT 1 FROM pg_available_extensions WHERE name = %s", "vector"):
            raise PreconditionFailed("the PostgreSQL of memory_store has no pgvector", field="memory_store")
        await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    await connection.execute(_TABLES.encode())


async def space_table(connection: AsyncConnection[TupleRow], number: int, dimension: int) -> None:
    """Make the table of a space's vectors where there is none; the caller holds the space's row."""
    statement = f"""
    UPDATE {SCHEMA}.space SET dimension = %s WHERE id = %s AND dimension = 0
    """  # noqa: S608
    if (await connection.execute(statement.encode(), (dimension, number))).rowcount:
        await connection.execute(
            f"CREATE TABLE {SCHEMA}.vector_{number} (memory bigint PRIMARY KEY "
            f"REFERENCES {SCHEMA}.memory ON DELETE CASCADE, vector vector({dimension}) NOT NULL)".encode()
        )


async def _there(connection: AsyncConnection[TupleRow], statement: str, name: str) -> bool:
    return await (await connection.execute(statement.encode(), (name,))).fetchone() is not None
