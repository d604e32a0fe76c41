"""The database tool on SQLite, and what the pipeline records of its calls."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from swe_ai_fleet.domain.audit import verify
from swe_ai_fleet.domain.tool import Decision, Outcome
from swe_ai_fleet.tools import Pipeline, ToolLimits
from swe_ai_fleet.tools.db import DatabaseTool, secret_values
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.secrets import Secrets
from tests.database_calls import QUOTED, SECRET, ok, recorded, refused


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
    async def test_reading(self, local: DatabaseTool, root: Path) -> None:
        result = await ok(local.sqlite_query("SELECT * FROM item WHERE id < ?", "app.db", params=[9]))
        assert result.content == "id | name\n1 | pen\n2 | NULL\n[2 rows]"
        assert (await ok(local.sqlite_query("SELECT * FROM item", connection="notes"))).metadata["row_count"] == 2
        assert "CREATE TABLE item" in (await ok(local.describe_schema(path="app.db"))).content
        assert "CREATE TABLE item" in (await ok(local.describe_schema("notes"))).content
        plan = await ok(local.explain("DELETE FROM item WHERE id = 1", path="app.db"))
        assert "SEARCH item" in plan.content
        await ok(local.sqlite_query("PRAGMA table_info(item)", "app.db"))
        await refused(local.sqlite_query("SELECT nmae FROM item", "app.db"), "no such column: nmae")
        await refused(local.sqlite_query("SELECT 1"), "give either")
        await refused(local.sqlite_query("SELECT 1", "app.db", "notes"), "give either")
        await refused(local.sqlite_query("SELECT ?", "app.db"), "SQLite")
        (root / "text.db").write_text("no database, just a text that is long enough to be told from one " * 20)
        await refused(local.sqlite_query("SELECT * FROM item", "text.db"), "not a database")

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

    async def test_a_database_in_use(self, local: DatabaseTool, root: Path) -> None:
        """What lies in the log of a program that runs is read, and never overwritten."""
        database = sqlite3.connect(root / "app.db", isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("INSERT INTO item VALUES (3, 'new')")
            assert "3 | new" in (await ok(local.sqlite_query("SELECT * FROM item", "app.db"))).content
            await refused(local.sqlite_query("DELETE FROM item", "app.db", read_only=False), "open elsewhere")
        finally:
            database.close()
        assert ids(root / "app.db") == [1, 2, 3]
        await ok(local.sqlite_query("DELETE FROM item WHERE id = 2", "app.db", read_only=False))
        assert ids(root / "app.db") == [1, 3]

    async def test_reading_only_reads(self, local: DatabaseTool, root: Path, tmp_path: Path) -> None:
        before = (root / "app.db").read_bytes(), (tmp_path / "outside.db").read_bytes()
        for sql in (
            "INSERT INTO item VALUES (9, 'x')", "WITH a AS (SELECT 9) INSERT INTO item SELECT *, 'x' FROM a",
            "CREATE TEMP TABLE t (a)", "DROP TABLE item", "PRAGMA query_only = OFF", "PRAGMA user_version = 7",
            "ANALYZE", "CREATE INDEX i ON item (name)", "EXPLAIN QUERY PLAN PRAGMA user_version = 7",
        ):  # fmt: skip
            for where in ({"path": "app.db"}, {"connection": "notes"}):
                recorded(local, await refused(local.sqlite_query(sql, **where), "SQLite"))
                assert before == ((root / "app.db").read_bytes(), (tmp_path / "outside.db").read_bytes()), sql

    async def test_refused_in_every_mode(self, local: DatabaseTool, root: Path, tmp_path: Path) -> None:
        for sql in (
            "SELECT 1; DELETE FROM item", "DELETE FROM item; COMMIT", "ATTACH '{outside}' AS other",
            "VACUUM INTO '{marker}'", "VACUUM", "SELECT load_extension('{outside}')",
            "SELECT writefile('{marker}', 'x')", "PRAGMA journal_mode = WAL", "PRAGMA writable_schema = ON",
            "PRAGMA temp_store_directory = '{marker}'", "PRAGMA database_list", "COMMIT", "BEGIN", "SAVEPOINT a",
            "SELECT length(zeroblob(1000000000))",
        ):  # fmt: skip
            statement = sql.format(outside=tmp_path / "outside.db", marker=tmp_path / "pwned")
            for read_only in (True, False):
                recorded(local, await refused(local.sqlite_query(statement, "app.db", read_only=read_only)))
                assert ((tmp_path / "pwned").exists(), ids(root / "app.db")) == (False, [1, 2]), sql

    async def test_nothing_outside_the_workspace(self, local: DatabaseTool, root: Path, tmp_path: Path) -> None:
        (root / "link.db").symlink_to(tmp_path / "outside.db")
        (root / ".git").mkdir()
        shutil.copy(root / "app.db", root / ".git/app.db")
        os.mkfifo(root / "pipe.db")
        paths = ("../outside.db", str(tmp_path / "outside.db"), "link.db", ".git/app.db", "pipe.db", ".", ":memory:")
        for path in (*paths, f"file:{tmp_path}/outside.db", "file:app.db?mode=rwc"):
            recorded(local, await refused(local.sqlite_query("SELECT * FROM item", path)))
            recorded(local, await refused(local.describe_schema(path=path)))
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


class TestPipeline:
    async def test_policy_and_audit(self, root: Path) -> None:
        urls = {"gone": f"neo4j://neo4j:{QUOTED}@127.0.0.1:1/graph"}
        pipeline = Pipeline(
            policy=Policy(allowed_paths=("data/",), denied=frozenset({"db_redis_command"})),
            mask=Secrets(secret_values(urls)),
            limits=ToolLimits(observation_chars=2_000),
        )
        tool = DatabaseTool(root, pipeline, connections=urls)
        await refused(tool.sqlite_query("SELECT 1", "app.db", read_only=False), "outside the paths allowed")
        await refused(tool.redis_command("gone", "PING"), "denied")
        await refused(tool.neo4j_query("gone", "RETURN $secret", {"secret": SECRET}), "Neo4j", "failed")
        await refused(tool.describe_schema("gone"), "Neo4j")
        await refused(tool.call("explain", {"connection": "gone"}), "missing argument 'sql'")
        entries = pipeline.trail.entries
        assert verify(entries, head=pipeline.trail.head) is None
        assert [(entry.operation, entry.decision, entry.outcome) for entry in entries] == [
            ("sqlite_query", Decision.REFUSED, Outcome.REFUSED), ("redis_command", Decision.REFUSED, Outcome.REFUSED),
            ("neo4j_query", Decision.ALLOWED, Outcome.STARTED), ("neo4j_query", Decision.ALLOWED, Outcome.ERROR),
            ("describe_schema", Decision.ALLOWED, Outcome.ERROR), ("explain", Decision.ALLOWED, Outcome.INVALID),
        ]  # fmt: skip
        seen = repr(entries)
        assert not any(secret in seen for secret in (SECRET, QUOTED, "127.0.0.1"))
