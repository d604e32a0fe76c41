"""A small part of the zoo: a few projects with all their pools, and each format of lock file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.zoo.__main__ import CACHE
from tests.zoo.catalogue import projects
from tests.zoo.judging import Fleet, open_judges
from tests.zoo.locks import TOOLS
from tests.zoo.report import figures
from tests.zoo.sources import Sources
from tests.zoo.visit import visit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = ("inflection", "colorama", "pg-format", "fnv")


@pytest.fixture(scope="module")
async def judges(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with open_judges(tmp_path_factory.mktemp("zoo")) as fleet:
        yield fleet


@pytest.mark.parametrize("name", SMALL)
async def test_right_changes_are_told_from_wrong_ones(name: str, judges: Fleet, tmp_path: Path) -> None:
    (project,) = projects([name])
    row = await visit(project, Sources(cache=CACHE), judges, tmp_path)
    found = figures([row])
    assert (row.baseline_ok, row.env_ok) == (True, True), row.judgement
    assert row.pools.changes, row.pools.cause
    assert (found["right_refused"], found["wrong_accepted"]) == (0, 0), row.pools.changes
    assert found["right_verified"] == 1, row.pools.changes


@pytest.mark.parametrize("lock", TOOLS)
async def test_each_lock_file_makes_the_environment(lock: str, judges: Fleet, tmp_path: Path) -> None:
    project = next(project for project in projects() if project.lock == lock)
    row = await visit(replace(project, pools=False), Sources(cache=CACHE), judges, tmp_path)
    assert (row.baseline_ok, row.env_ok) == (True, True), row.judgement
