"""Databases among the tools of an installation: configured, offered, called, kept secret."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from swe_ai_fleet import ToolEnabledAgent
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.extensions.databases.toolkit import DatabasePack
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.catalogue import ToolAccess
from tests.environments import home_at
from tests.tool_doubles import TASK, offered, shown


async def test_a_role_is_shown_the_databases_that_there_are(tmp_path: Path) -> None:
    for databases in ({"a": "postgresql://x/a"}, {}):
        access = ToolAccess(packs=(DatabasePack(Settings(databases=databases)),))
        for role in Role:
            given = shown(await offered(tmp_path, access=access, task=replace(TASK, role=role)))
            there = DatabasePack.shown.get(role, set()) if databases else set()
            assert {name for name in given if name.startswith("db_")} == there
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
