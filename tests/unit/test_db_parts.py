"""The database tool's parts that need no server: limits, masks, what is said without a driver."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.tools import DatabaseTool, Pipeline
from swe_ai_fleet.tools.db import secret_values
from swe_ai_fleet.tools.policy import Policy


async def test_results_are_bounded_lines(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("CREATE TABLE t (a, b)")
        values = ("x" * 9_000, b"\xff\x00", "xé".encode() * 5_000, None, 1.5)
        rows = [(f"{n}\r\n\ttext", values[n % 5]) for n in range(10)]
        database.executemany("INSERT INTO t VALUES (?, ?)", rows)
    database.close()
    tool = DatabaseTool(tmp_path)
    for limit in (1, 9, 10, 11):
        result = await tool.sqlite_query("SELECT * FROM t", "a.db", max_rows=limit)
        assert (result.metadata["row_count"], result.truncated) == (min(limit, 10), limit < 10)
        lines = result.content.splitlines()
        assert len(lines) == 2 + min(limit, 10)
        assert all(len(line) < 4_200 for line in lines)
        assert lines[1].endswith(" more]")
    assert lines[2] == "1\\r\\n\\ttext | \\xff00"
    assert lines[3].startswith("2\\r\\n\\ttext | xéxé")
    large = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT hex(zeroblob(5000)) FROM n"
    many = await tool.sqlite_query(large, "a.db", max_rows=5_000)
    assert many.truncated
    assert len(many.content) < 300_000


def test_what_is_secret() -> None:
    a = "postgresql://me:p%40ss-word@host/x?sslpassword=certificate-key"
    values = secret_values({"a": a, "b": "sqlite:///data/app.db", "c": "redis://[broken"})
    assert {"p%40ss-word", "p@ss-word", "certificate-key", "redis://[broken"} <= values
    assert not any("app.db" in value for value in values)


async def test_names_only() -> None:
    tool = DatabaseTool(connections={"main": "mysql://me:secret-word@host/x", "broken": "redis://[secret"})
    for call in (
        tool.postgresql_query("main", "SELECT 1"),
        tool.describe_schema("main"),
        tool.explain("SELECT 1", "broken"),
        tool.redis_command("redis://me:secret-word@host", "PING"),
    ):
        answer = await call
        assert answer.outcome is Outcome.ERROR
        assert "secret" not in answer.error.replace("redis://me:secret-word@host", "")
    assert "there is no connection" in answer.error
    graph = DatabaseTool(connections={"graph": "bolt://127.0.0.1:1"})
    assert "without EXPLAIN or PROFILE" in (await graph.explain("/* x */ PROFILE CREATE ()", "graph")).error


async def test_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver, scheme in {"psycopg": "postgresql", "redis.asyncio": "redis", "neo4j": "bolt"}.items():
        monkeypatch.setitem(sys.modules, driver, None)
        tool = DatabaseTool(connections={"main": f"{scheme}://127.0.0.1:1"})
        assert "pip install 'swe-ai-fleet[db]'" in (await tool.describe_schema("main")).error


async def test_allowed_paths_say_nothing_about_a_named_connection(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "data.db").close()
    pipeline = Pipeline(policy=Policy(allowed_paths=("src/*",)))
    tool = DatabaseTool(pipeline=pipeline, connections={"main": f"sqlite:///{tmp_path}/data.db"})
    by_name = await tool.sqlite_query("select 1", connection="main")
    assert by_name.success, by_name.error
    assert "outside the paths allowed" in (await tool.sqlite_query("select 1", path="data.db")).error
