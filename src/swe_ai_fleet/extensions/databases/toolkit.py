"""The database toolkit of agents: callers give the name of a connection, never its URL."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from swe_ai_fleet.domain.task import Role, Task
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.extensions.databases import neo4j, postgresql, redis, sqlite
from swe_ai_fleet.extensions.databases.results import MAX_ROWS, QueryBounds, Rows, Value, result
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.settings import Settings, listed
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal, ToolTimeout
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pack import ToolPack
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.secrets import Secrets, url_secrets


class Database(StrEnum):
    """The kinds of databases; each has its own module."""

    POSTGRESQL = "postgresql"
    REDIS = "redis"
    NEO4J = "neo4j"
    SQLITE = "sqlite"


_SCHEMES = {
    **dict.fromkeys(("postgresql", "postgres"), Database.POSTGRESQL),
    **dict.fromkeys(("redis", "rediss", "unix", "valkey"), Database.REDIS),
    **dict.fromkeys(("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc"), Database.NEO4J),
    "sqlite": Database.SQLITE,
}


def kind_of(url: str) -> Database | None:
    """The kind of database at a connection's URL; None: not a supported one."""
    try:
        return _SCHEMES.get(urlsplit(url).scheme)
    except ValueError:
        return None


MAX_SECONDS = 300.0
_ROLES = frozenset(Role) - {Role.ARCHITECT}
_BACKSTOP_SECONDS = MAX_SECONDS + 30.0
"""The pipeline's limit, above that of any caller: each operation ends itself, with time to cancel its statement."""

_CANCEL_TRIES = 5
_CANCEL_SECONDS = 1.0
"""How often a statement is cancelled, and how long each time may take to reach the database."""

_DESCRIBING = QueryBounds(max_rows=1_000, timeout_seconds=30.0)
_DESCRIBE = {Database.POSTGRESQL: postgresql.describe, Database.REDIS: redis.describe, Database.NEO4J: neo4j.describe}
_EXPLAIN = {Database.POSTGRESQL: postgresql.explain, Database.NEO4J: neo4j.explain}
Connection = Annotated[str, Field(description="Name of a configured connection, such as main.")]
Sql = Annotated[str, Field(description="Exactly one statement.")]
ReadOnly = Annotated[bool, Field(description="Leave it true unless something is to be changed.")]
MaxRows = Annotated[int, Field(description="Rows to keep.", ge=1, le=MAX_ROWS)]
Seconds = Annotated[float, Field(description="Time limit in seconds.", gt=0, le=MAX_SECONDS)]
OptionalPath = Annotated[str | None, Field(description="SQLite file, relative to the root of the workspace.")]
OptionalConnection = Annotated[str | None, Field(description="Name of a configured connection.")]
_ASKING = operation(
    risk=Risk.MEDIUM, network=True, locks=("database",), time_limit_seconds=_BACKSTOP_SECONDS, roles=_ROLES
)
_LOOKING = operation(read_only=True, network=True, locks=("database",), time_limit_seconds=_BACKSTOP_SECONDS)


class DatabaseTool(Toolkit):
    """Databases by the names of their connections; URLs and credentials are never shown, recorded or accepted.

    Args:
        workspace: The workspace of SQLite files given by path: an open workspace, the path of a directory, or None.
        pipeline: The pipeline of every call; None: its own. The mask of a shared one should include
            `url_secrets(connections.values())`, so that recorded arguments are masked, too.
        connections: URL by name, from the settings: `postgresql://`, `redis://`, `neo4j://` or `bolt://`,
            `sqlite:///path`.
        writable: The names of the connections that allow `read_only=false`. SQLite files of the workspace always do.
    """

    name: ClassVar[str] = "db"

    def __init__(
        self,
        workspace: Workspace | Path | str | None = None,
        pipeline: Pipeline | None = None,
        *,
        connections: Mapping[str, str] = {},
        writable: Collection[str] = (),
    ) -> None:
        self._mask = Secrets(url_secrets(connections.values()))
        self._connections = dict(connections)
        self._writable = frozenset(writable)
        self._tree: Tree | None = None
        self.pipeline = pipeline or Pipeline(mask=self._mask)
        if workspace is not None:
            super().__init__(workspace, self.pipeline)
            self._tree = Tree(self.workspace.root, self.workspace.mount)

    @_ASKING
    async def postgresql_query(
        self,
        connection: Connection,
        sql: Sql,
        params: Annotated[list[Value], Field(description="Values of $1, $2 and so on.")] = [],  # noqa: B006
        read_only: ReadOnly = True,
        max_rows: MaxRows = 200,
        timeout_seconds: Seconds = 30.0,
    ) -> ToolResult:
        """Run one SQL statement on PostgreSQL, in a transaction of its own; values go into params."""
        bounds = QueryBounds(read_only=read_only, max_rows=max_rows, timeout_seconds=timeout_seconds)
        url = self._url(connection, Database.POSTGRESQL, bounds)
        return await self._answer("postgresql_query", postgresql.query(url, sql, params, bounds), bounds)

    @_ASKING
    async def redis_command(
        self,
        connection: Connection,
        command: Annotated[str, Field(description="The command's name alone, such as HGETALL.")],
        args: Annotated[list[str | int | float], Field(description="Its arguments, one item each.")] = [],  # noqa: B006
        read_only: ReadOnly = True,
        max_rows: MaxRows = 200,
        timeout_seconds: Seconds = 30.0,
    ) -> ToolResult:
        """Run one command on Redis or Valkey."""
        bounds = QueryBounds(read_only=read_only, max_rows=max_rows, timeout_seconds=timeout_seconds)
        url = self._url(connection, Database.REDIS, bounds)
        return await self._answer("redis_command", redis.command(url, command, args, bounds), bounds)

    @_ASKING
    async def neo4j_query(
        self,
        connection: Connection,
        cypher: Annotated[str, Field(description="Exactly one Cypher statement.")],
        params: Annotated[dict[str, Value | list[Value]], Field(description="Values of $name.")] = {},  # noqa: B006
        read_only: ReadOnly = True,
        max_rows: MaxRows = 200,
        timeout_seconds: Seconds = 30.0,
    ) -> ToolResult:
        """Run one Cypher statement on Neo4j, in a transaction of its own."""
        bounds = QueryBounds(read_only=read_only, max_rows=max_rows, timeout_seconds=timeout_seconds)
        url = self._url(connection, Database.NEO4J, bounds)
        return await self._answer("neo4j_query", neo4j.query(url, cypher, params, bounds), bounds)

    @operation(risk=Risk.MEDIUM, time_limit_seconds=_BACKSTOP_SECONDS)
    async def sqlite_query(
        self,
        sql: Sql,
        path: OptionalPath = None,
        connection: OptionalConnection = None,
        params: Annotated[list[Value], Field(description="Values of the ? in their order.")] = [],  # noqa: B006
        read_only: ReadOnly = True,
        max_rows: MaxRows = 200,
        timeout_seconds: Seconds = 30.0,
    ) -> ToolResult:
        """Run one SQL statement on a SQLite file: give its path in the workspace, or the name of a connection."""
        bounds = QueryBounds(read_only=read_only, max_rows=max_rows, timeout_seconds=timeout_seconds)
        return await self._answer("sqlite_query", self._sqlite(sql, params, path, connection, bounds), bounds)

    @_LOOKING
    async def describe_schema(self, connection: OptionalConnection = None, path: OptionalPath = None) -> ToolResult:
        """Show what a database holds: tables, columns and constraints; keys of Redis; labels of Neo4j."""
        return await self._answer("describe_schema", self._inspect(connection, path), _DESCRIBING)

    @_LOOKING
    async def explain(self, sql: Sql, connection: OptionalConnection = None, path: OptionalPath = None) -> ToolResult:
        """Show how a database would run a statement (SQL or Cypher) without running it."""
        return await self._answer("explain", self._inspect(connection, path, sql), _DESCRIBING)

    async def _inspect(self, connection: str | None, path: str | None, sql: str | None = None) -> Rows:
        """The schema of a database, or its plan for a statement."""
        kind, url = self._server(connection, path)
        if kind is Database.SQLITE:
            statement = sqlite.SCHEMA if sql is None else sqlite.EXPLAIN + sql
            return await self._sqlite(statement, (), path, connection, _DESCRIBING)
        if kind is Database.REDIS and sql is not None:
            raise ToolFailure("Redis has no plans to explain")
        return await (_DESCRIBE[kind](url, _DESCRIBING) if sql is None else _EXPLAIN[kind](url, sql, _DESCRIBING))

    def _url(self, connection: str, kind: Database, bounds: QueryBounds) -> str:
        """The URL of a connection to a database of this kind. Raises ToolFailure, which never holds a URL."""
        if not bounds.read_only and connection not in self._writable:
            writable = ", ".join(sorted(self._writable)) or "none is"
            raise ToolRefusal(f"the connection {connection[:80]!r} is for reading only; writable: {writable}")
        actual, url = self._server(connection, None)
        if actual is not kind:
            raise ToolFailure(f"the connection {connection[:80]!r} leads to {actual}, not to {kind}")
        return url

    def _server(self, connection: str | None, path: str | None) -> tuple[Database, str]:
        """The kind of database of a connection or a file, and the URL of a connection."""
        if (connection is None) == (path is None):
            raise ToolFailure("give either the name of a connection or the path of a SQLite file")
        if connection is None:
            return Database.SQLITE, ""
        url = self._connections.get(connection)
        if url is None:
            names = ", ".join(sorted(self._connections)) or "none are configured"
            raise ToolFailure(f"there is no connection {connection[:80]!r}; connections: {names}")
        kind = kind_of(url)
        if kind is None:
            raise ToolFailure(f"the settings of the connection {connection[:80]!r} name no database that is supported")
        return kind, url

    async def _sqlite(
        self, sql: str, params: Sequence[Value], path: str | None, connection: str | None, bounds: QueryBounds
    ) -> Rows:
        self._server(connection, path)
        if connection is not None:
            return await sqlite.query_url(self._url(connection, Database.SQLITE, bounds), sql, params, bounds)
        if self._tree is None or path is None:
            raise ToolFailure("there is no workspace here; give the name of a connection")
        return await sqlite.query_file(self._tree, path, sql, params, bounds)

    async def _answer(self, operation_name: str, work: Coroutine[Any, Any, Rows], bounds: QueryBounds) -> ToolResult:
        """The rows as a result without this toolkit's secrets, which the pipeline's mask may not know."""
        seconds = bounds.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                rows = await _cancellable(work)
        except TimeoutError:
            message = f"the statement did not finish within {seconds:g} seconds: ask for less, or give it more time"
            raise ToolTimeout(message) from None
        except ToolFailure as failure:
            raise type(failure)(self._mask(failure.message)) from None
        answer = result(f"db_{operation_name}", rows)
        columns = [self._mask(column) for column in rows.columns]
        return replace(answer, content=self._mask(answer.content), metadata={**answer.metadata, "columns": columns})


async def _cancellable(work: Coroutine[Any, Any, Rows]) -> Rows:
    """The rows. Cancelled with this task, even if a driver turns a cancellation into an error and goes on."""
    running = asyncio.create_task(work)
    try:
        await asyncio.wait([running])
    finally:
        for _ in range(_CANCEL_TRIES):
            if running.done():
                break
            running.cancel()
            await asyncio.wait([running], timeout=_CANCEL_SECONDS)
        if running.done() and not running.cancelled():
            running.exception()  # retrieved, or asyncio logs it
    return running.result()


class DatabasePack(ToolPack):
    """The databases that settings name; operations of other kinds are useless."""

    kit = DatabaseTool
    shown = {Role.DATA: frozenset({"db_sqlite_query", "db_postgresql_query", "db_describe_schema"})}  # noqa: RUF012

    def __init__(self, settings: Settings) -> None:
        self._connections, self._writable = settings.databases, listed(settings.writable_databases)
        self.secrets = url_secrets(self._connections.values())
        self.summary = counted(len(self._connections), "database") if self._connections else ""
        # SQLite files of the workspace need no connection.
        absent = set(Database) - {Database.SQLITE} - {kind_of(url) for url in self._connections.values()}
        lacking = {f"db_{name}" for name in DatabaseTool.definitions if name.partition("_")[0] in absent}
        self.useless = frozenset(lacking if self._connections else {DatabaseTool.name})

    def toolkit(
        self, workspace: Workspace, pipeline: Pipeline, task: Task | None = None, taken: Collection[str] = ()
    ) -> Toolkit:
        return DatabaseTool(workspace, pipeline, connections=self._connections, writable=self._writable)
