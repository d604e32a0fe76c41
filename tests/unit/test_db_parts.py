"""The database tool's parts that need no database: limits, masks, refusal lists, what is said without a driver."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.tools import Pipeline
from swe_ai_fleet.tools.db import DatabaseTool, secret_values
from swe_ai_fleet.tools.db.results import MAX_CELL_CHARS, MAX_RESULT_CHARS, Collector, cell, result
from swe_ai_fleet.tools.policy import Policy


class TestResults:
    @given(st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.text(min_size=999).map(lambda t: t * 9)))
    def test_a_cell_is_one_line_of_bounded_length(self, value: object) -> None:
        shown = cell(value)
        assert "\n" not in shown
        assert "\r" not in shown
        assert len(shown) <= 4 * MAX_CELL_CHARS + 40

    def test_long_bytes_are_cut_between_characters(self) -> None:
        shown = cell("xé".encode() * 5_000)
        assert shown.startswith("xéxé")
        assert shown.endswith(" more]")
        assert cell(b"\xff\x00") == "\\xff00"

    @given(st.lists(st.lists(st.text(max_size=30), min_size=2, max_size=2), max_size=20), st.integers(1, 25))
    def test_rows_up_to_the_limit(self, rows: list[list[str]], limit: int) -> None:
        collector = Collector(("a", "b"), limit)
        kept = [collector.add(row) for row in rows]
        shown = result("db_x", collector.rows())
        assert kept == [number < limit for number in range(len(rows))]
        assert shown.metadata["row_count"] == min(limit, len(rows))
        assert shown.truncated == (len(rows) > limit)
        assert len(shown.content.splitlines()) >= 2 + min(limit, len(rows))

    def test_characters_up_to_the_limit(self) -> None:
        collector = Collector(("a",), 5_000)
        while collector.add(("x" * MAX_CELL_CHARS,)):
            pass
        assert not collector.add(("short",))
        assert len(result("db_x", collector.rows()).content) < MAX_RESULT_CHARS + 1_000


class TestConnections:
    def test_what_is_secret(self) -> None:
        values = secret_values(
            {
                "a": "postgresql://me:p%40ss-word@host/x?sslpassword=certificate-key",
                "b": "sqlite:///data/app.db",
                "c": "redis://[broken",
            }
        )
        assert {"p%40ss-word", "p@ss-word", "certificate-key", "redis://[broken"} <= values
        assert not any("app.db" in value for value in values)

    async def test_names_only(self) -> None:
        tool = DatabaseTool(connections={"main": "mysql://me:secret-word@host/x", "broken": "redis://[secret"})
        for call in (
            tool.postgresql_query("main", "SELECT 1"),
            tool.describe_schema("main"),
            tool.explain("SELECT 1", "broken"),
            tool.redis_command("redis://me:secret-word@host", "PING"),
        ):
            answer = await call
            assert not answer.success
            assert answer.outcome is Outcome.ERROR
            assert "secret" not in answer.error.replace("redis://me:secret-word@host", "")
        assert "there is no connection" in answer.error

    @pytest.mark.parametrize("driver", ["psycopg", "redis.asyncio", "neo4j"])
    async def test_without_its_driver(self, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, driver, None)
        scheme = {"psycopg": "postgresql", "redis.asyncio": "redis", "neo4j": "bolt"}[driver]
        tool = DatabaseTool(connections={"main": f"{scheme}://127.0.0.1:1"})
        assert "pip install 'swe-ai-fleet[db]'" in (await tool.describe_schema("main")).error


async def test_allowed_paths_say_nothing_about_a_named_connection(tmp_path: Path) -> None:
    database = tmp_path / "data.db"
    sqlite3.connect(database).close()
    pipeline = Pipeline(policy=Policy(allowed_paths=("src/*",)))
    tool = DatabaseTool(pipeline=pipeline, connections={"main": f"sqlite:///{database}"})
    by_name = await tool.sqlite_query("select 1", connection="main")
    assert by_name.success, by_name.error
    by_path = await tool.sqlite_query("select 1", path="data.db")
    assert "outside the paths allowed" in by_path.error
