"""The database of the PostgreSQL index: its tables, and a small pool of connections.

The tables are in a schema whose name has their version and the source of the memories.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, ResourceExhausted, Unavailable

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Error
    from psycopg.rows import TupleRow

_SCHEMA = "fleet_memory_1"
_SOURCE = re.compile(r"[a-z0-9]{0,32}")

# The advisory lock held while tables are created; any number that no other program uses.
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
_CONNECTIONS = 4
_CONNECT_SECONDS = 10
_SEARCH_PATH = "SELECT set_config('search_path', %s || ', ' || current_setting('search_path'), true)"
_SETTINGS = (("statement_timeout", "60s"), ("lock_timeout", "20s"), ("client_min_messages", "warning"))


def schema_of(source: str) -> str:
    """The schema for memories of one source. Raises InvalidRequest for a source that cannot be part of a name."""
    if not _SOURCE.fullmatch(source):
        raise InvalidRequest(
            f"{source[:40]!r} is not a source of memories", field="source", hint="a-z and 0-9, up to 32"
        )
    return f"{_SCHEMA}_{source}" if source else _SCHEMA


async def prepare(connection: AsyncConnection[TupleRow], schema: str) -> None:
    """Create the tables if there are none; the schema is first in the search path. Raises PreconditionFailed."""
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    if await _exists(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", schema):
        return
    if not await _exists(connection, "SELECT 1 FROM pg_extension WHERE extname = %s", "vector"):
        if not await _exists(connection, "SELECT 1 FROM pg_available_extensions WHERE name = %s", "vector"):
            raise PreconditionFailed("the PostgreSQL of memory_store has no pgvector", field="memory_store")
        await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    await connection.execute(f"CREATE SCHEMA {schema}".encode())
    await connection.execute(_TABLES)


async def space_table(connection: AsyncConnection[TupleRow], number: int, dimension: int) -> None:
    """Create the table of a space's vectors if there is none; the caller has locked the space's row."""
    statement = "UPDATE space SET dimension = %s WHERE id = %s AND dimension = 0"
    if (await connection.execute(statement.encode(), (dimension, number))).rowcount:
        await connection.execute(
            f"CREATE TABLE vector_{number} (memory bigint PRIMARY KEY "
            f"REFERENCES memory ON DELETE CASCADE, vector vector({dimension}) NOT NULL)".encode()
        )


async def _exists(connection: AsyncConnection[TupleRow], statement: str, name: str) -> bool:
    return await (await connection.execute(statement.encode(), (name,))).fetchone() is not None


class DatabaseConnections:
    """A pool of connections, opened when needed, and reopened if lost.

    Args:
        url: The URL of the database.
        schema: The first schema in the search path.
    """

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._idle: list[AsyncConnection[TupleRow]] = []
        self._free = asyncio.Semaphore(_CONNECTIONS)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncConnection[TupleRow]]:
        """A connection in a transaction. Raises Unavailable, PreconditionFailed, ResourceExhausted, InvalidRequest."""
        async with self._free:
            with _faults():
                connection = await self._connection()
                try:
                    async with connection.transaction():
                        # In each transaction: a pooler may give the connection to other clients in between.
                        await connection.execute(_SEARCH_PATH, (self._schema,))
                        yield connection
                finally:
                    await self._put_back(connection)

    async def close(self) -> None:
        """Close the connections."""
        while self._idle:
            await self._idle.pop().close()

    async def _connection(self) -> AsyncConnection[TupleRow]:
        import psycopg

        while self._idle:
            connection = self._idle.pop()
            try:
                # The server may have closed it.
                await connection.execute("SELECT 1")
            except psycopg.OperationalError:
                await connection.close()
            except BaseException:
                await connection.close()
                raise
            else:
                return connection
        # No prepared statements: a pooler in front of the server may use another connection each time.
        connection = await psycopg.AsyncConnection.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=_CONNECT_SECONDS,
            client_encoding="utf8",
        )
        try:
            for name, value in _SETTINGS:
                await connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _put_back(self, connection: AsyncConnection[TupleRow]) -> None:
        from psycopg.pq import TransactionStatus

        if connection.info.transaction_status is TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            await connection.close()


@contextmanager
def _faults() -> Generator[None]:
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise _fault(error) from None


def _fault(error: Error) -> FleetError:
    from psycopg import OperationalError
    from psycopg.errors import InsufficientPrivilege, InsufficientResources, InvalidAuthorizationSpecification

    # The driver's full message may contain host, user or the URL.
    state = error.sqlstate or ""
    reason = str(error.diag.message_primary or type(error).__name__)
    if isinstance(error, InvalidAuthorizationSpecification) or "authentication failed" in str(error):
        return PreconditionFailed("PostgreSQL refuses the credentials of memory_store", field="memory_store")
    if isinstance(error, InsufficientPrivilege):
        return PreconditionFailed(
            f"the role of memory_store lacks a permission: {reason}",
            field="memory_store",
            hint="it needs CREATE on the database, and an administrator's CREATE EXTENSION vector",
        )
    if isinstance(error, InsufficientResources) and not state.startswith("533"):
        return ResourceExhausted(f"PostgreSQL is full: {reason}", field="memory_store")
    if isinstance(error, OperationalError):
        return Unavailable(f"the PostgreSQL of memory_store is unavailable: {reason}", field="memory_store")
    if not state:
        return InvalidRequest("memory_store is not a valid PostgreSQL URL", field="memory_store")
    return PreconditionFailed(f"PostgreSQL rejected a statement: {state} {reason}", field="memory_store")
