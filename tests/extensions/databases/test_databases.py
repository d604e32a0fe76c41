"""Statements that go on when their call is over, or reach further than their words say, on real databases."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.tools import DatabaseTool
from tests.postgresql_server import PostgresqlServer
from tests.tables import table

# One call of a built-in function each, over minutes: no step between its beginning and its end.
LONG = "replace(hex(zeroblob(4000000)), '00', 'a')"
SHORT = "replace(hex(zeroblob(2000000)), '00', 'a') || 'b'"
ONE_CALL = f"instr({LONG}, {SHORT})"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()
    for path in (root / "app.db", tmp_path / "notes.db"):
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
            database.execute("INSERT INTO item VALUES (1, 'pen')")
        database.close()
    return root


@pytest.fixture
def tool(workspace: Path, tmp_path: Path) -> DatabaseTool:
    return DatabaseTool(workspace, connections={"notes": f"sqlite://{tmp_path}/notes.db"}, writable=("notes",))


def children() -> set[int]:
    """The child processes of this one, unreaped ones included."""
    path = Path(f"/proc/{os.getpid()}/task")
    return {int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split()}


def name_of(database: Path) -> str:
    with sqlite3.connect(database) as connection:
        (name,) = connection.execute("SELECT name FROM item").fetchone()
    connection.close()
    return name


async def test_one_long_call_ends_at_its_limit(tool: DatabaseTool, tmp_path: Path) -> None:
    sql, where = f"UPDATE item SET name = {ONE_CALL}", {"connection": "notes"}
    before = children()
    answer = await tool.sqlite_query(sql, timeout_seconds=0.4, read_only=False, **where)
    assert answer.outcome is Outcome.TIMEOUT, answer
    assert "0.4 seconds" in answer.error
    assert children() == before
    assert name_of(tmp_path / "notes.db") == "pen"
    # The database is as usable as before.
    again = await tool.sqlite_query("UPDATE item SET name = 'ink'", read_only=False, **where)
    assert again.success, again.error


async def test_one_long_call_ends_with_its_caller(
    tool: DatabaseTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = children()
    call = asyncio.create_task(tool.sqlite_query(f"SELECT {ONE_CALL}", "app.db", timeout_seconds=300))
    async with asyncio.timeout(10):
        while children() == before:
            await asyncio.sleep(0.005)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (children(), list(tmp_path.glob("fleet-sqlite-*"))) == (before, [])
    assert tool.pipeline.trail.entries[-1].outcome is Outcome.CANCELLED


async def test_memory_is_bounded(tool: DatabaseTool) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    answer = await tool.sqlite_query("SELECT " + ", ".join(["hex(randomblob(7500000))"] * 60), "app.db")
    assert answer.outcome is Outcome.ERROR
    assert "memory" in answer.error
    # What ends meanwhile is in it, too: a fork of this process may have a little more than the largest before.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(1.02 * before, 600 * 1024)
    answer = await tool.sqlite_query("SELECT length(hex(randomblob(7500000)))", "app.db")
    assert "15000000" in answer.content


SPELLINGS = [
    "pg_terminate_backend(pid)", "pg_terminate_backend/* a /* b */ c */ (pid)", "pg_terminate_backend -- (\n(pid)",
    "pg_terminate_backend -- a\r(pid)",
    '"pg_catalog"."pg_terminate_backend"/**/(pid)', "pg_catalog . PG_Terminate_Backend\f(pid)",
    'U&"pg\\005fterminate\\005fbackend"(pid)', 'u&"pg\\+00005fterminate_backend"/**/(pid)',
    "U&\"pg!005fterminate_backend\" /**/ UESCAPE '!' (pid)",
]  # fmt: skip
CALL = "SELECT {} FROM pg_stat_activity WHERE application_name = 'victim'"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with PostgresqlServer.open() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE ROLE agent LOGIN")
            connection.execute("CREATE SCHEMA work AUTHORIZATION agent")
        yield server


@pytest.fixture
def agent(server: PostgresqlServer) -> str:
    return server.url().replace("postgres@", "agent@")


def lives(session: psycopg.Connection) -> bool:
    try:
        session.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


@table("spelling", SPELLINGS)
async def test_no_spelling_of_a_name_ends_another_session(agent: str, spelling: str) -> None:
    # Another session of the same role, which that role may end.
    victim = psycopg.connect(agent, autocommit=True, application_name="victim")
    tool = DatabaseTool(connections={"main": agent}, writable=("main",))
    for read_only in (True, False):
        answer = await tool.postgresql_query("main", CALL.format(spelling), read_only=read_only)
        assert answer.outcome is Outcome.REFUSED, answer
        assert "pg_terminate_backend is refused here" in answer.error
    assert lives(victim)
    # The control: the server takes each of them for the function.
    with psycopg.connect(agent, autocommit=True) as connection:
        connection.execute(CALL.format(spelling).encode())
    assert not lives(victim)
    victim.close()


@table(
    "sql",
    [
        "--\rDO $$ BEGIN PERFORM 1; END $$ /*\nSELECT */", "SELECT dblink/**/('dbname=postgres', 'SELECT 1')",
        "SELECT query_to_xml('SELECT ' || 'pg_terminate_' || 'backend(1)', true, true, '')",
        "SELECT * FROM ts_stat('SELECT to_tsvector(''a'') FROM pg_terminate_' || 'backend(1)')",
        "SELECT pg_notify('a', 'b')", "SELECT pg_stat_reset/**/()", "SELECT lo_creat/**/(-1)",
        "SELECT E'it''s \\'' || pg_read_file/**/('/etc/passwd')",
        "SELECT $a$ ' $a$ || pg_read_file/**/('/etc/passwd') || $a$ ' $a$",
    ],
)  # fmt: skip
async def test_reading_calls_what_the_server_calls_free_of_effects(agent: str, sql: str) -> None:
    tool = DatabaseTool(connections={"main": agent})
    answer = await tool.postgresql_query("main", sql)
    assert answer.outcome is Outcome.REFUSED, answer


@table(
    "sql",
    [
        "CREATE OPERATOR work.!!! (FUNCTION = pg_catalog.pg_terminate_backend, RIGHTARG = int)",
        "DO $do$ BEGIN PERFORM pg_terminate_backend/**/(1); END $do$",
        "DO 'BEGIN PERFORM pg_terminate_'\n'backend(1); END'",
        "CREATE FUNCTION work.f() RETURNS bool LANGUAGE sql AS 'SELECT U&\"pg\\005fterminate_backend\"(1)'",
    ],
)
async def test_what_is_created_gives_no_other_name_to_it(agent: str, sql: str) -> None:
    tool = DatabaseTool(connections={"main": agent}, writable=("main",))
    answer = await tool.postgresql_query("main", sql, read_only=False)
    assert answer.outcome is Outcome.REFUSED, answer
