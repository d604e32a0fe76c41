"""Statements that go on when their call is over, or reach further than their words say, on real databases."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.tools.db import DatabaseTool, sqlite_process

# One call of a built-in function each, over minutes: no step between its beginning and its end.
LONG = "replace(hex(zeroblob(4000000)), '00', 'a')"
SHORT = "replace(hex(zeroblob(2000000)), '00', 'a') || 'b'"
ONE_CALL = {
    "instr": f"SELECT instr({LONG}, {SHORT})",
    "replace": f"SELECT length(replace({LONG}, {SHORT}, ''))",
    "in a change": f"UPDATE item SET name = instr({LONG}, {SHORT})",
}


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
    """The processes that this one has started and not yet buried."""
    path = Path(f"/proc/{os.getpid()}/task")
    return {int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split()}


def name_of(database: Path) -> str:
    with sqlite3.connect(database) as connection:
        (name,) = connection.execute("SELECT name FROM item").fetchone()
    connection.close()
    return name


def test_control_one_call_never_comes_to_the_progress_handler(workspace: Path) -> None:
    # What the limit was kept by before: asked every so many steps, of which this has none.
    program = (
        "import sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1])\n"
        "database.set_progress_handler(lambda: 1, 1000)\n"
        "database.execute(sys.argv[2])\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        argv = [sys.executable, "-c", program, str(workspace / "app.db"), ONE_CALL["instr"]]
        subprocess.run(argv, timeout=1.5, check=False)


@pytest.mark.parametrize("where", [{"path": "app.db"}, {"connection": "notes"}], ids=["file", "connection"])
@pytest.mark.parametrize("sql", ONE_CALL.values(), ids=ONE_CALL)
async def test_one_long_call_ends_at_its_limit(
    tool: DatabaseTool, workspace: Path, tmp_path: Path, sql: str, where: dict[str, str]
) -> None:
    before = children()
    answer = await tool.sqlite_query(sql, timeout_seconds=0.4, read_only=sql.startswith("SELECT"), **where)
    assert answer.outcome is Outcome.TIMEOUT, answer
    assert "0.4 seconds" in answer.error
    assert children() == before
    assert name_of(workspace / "app.db") == name_of(tmp_path / "notes.db") == "pen"
    # The database is as usable as before.
    again = await tool.sqlite_query("UPDATE item SET name = 'ink'", read_only=False, **where)
    assert again.success, again.error


async def test_one_long_call_ends_with_its_caller(tool: DatabaseTool) -> None:
    before = children()
    call = asyncio.create_task(tool.sqlite_query(ONE_CALL["instr"], "app.db", timeout_seconds=300))
    async with asyncio.timeout(10):
        while children() == before:
            await asyncio.sleep(0.005)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert children() == before


async def test_a_statement_ends_without_the_fleet(workspace: Path) -> None:
    """Should the fleet be killed, limits of the statement's own end it: here nobody waits to kill it."""
    request = {
        "file": str(workspace / "app.db"), "uri": f"file:{workspace}/app.db?mode=ro", "sql": ONE_CALL["instr"],
        "plan": False, "params": [], "read_only": True, "max_rows": 1, "timeout_seconds": -4.5, "cell_chars": 9,
        "result_chars": 9, "value_bytes": 10**7, "file_bytes": 10**7, "memory_bytes": 2**29,
    }  # fmt: skip
    argv = [sys.executable, "-I", "-S", str(sqlite_process.__file__)]
    ended = subprocess.run(argv, input=json.dumps(request).encode(), timeout=30, check=False)
    assert ended.returncode < 0


async def test_memory_is_bounded(tool: DatabaseTool) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    answer = await tool.sqlite_query("SELECT " + ", ".join(["hex(randomblob(7500000))"] * 60), "app.db")
    assert answer.outcome is Outcome.ERROR
    assert "memory" in answer.error
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 600 * 1024)
    answer = await tool.sqlite_query("SELECT length(hex(randomblob(7500000)))", "app.db")
    assert "15000000" in answer.content
