"""A small part of the zoo: a few projects with all their pools, and each format of lock file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from labs.zoo.__main__ import CACHE
from labs.zoo.catalogue import projects
from labs.zoo.hiding import TestPlace, hide, places
from labs.zoo.judging import Fleet, open_judges
from labs.zoo.locks import TOOLS
from labs.zoo.report import figures
from labs.zoo.sources import Sources
from labs.zoo.visit import visit

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


def test_a_call_that_is_a_test_is_taken_out_alone(tmp_path: Path) -> None:
    file = tmp_path / "test" / "sum.js"
    file.parent.mkdir()
    file.write_text(
        "describe('sum', function () {\n  it('adds', function () {})\n  it('adds up', function () {})\n})\n"
    )
    (place,) = places(tmp_path, ["test/sum.js::sum > adds"], "sum")
    assert place == TestPlace(file="test/sum.js", title="adds")
    hide(tmp_path, [place])
    assert file.read_text().splitlines()[1:3] == ["  void ('adds', function () {})", "  it('adds up', function () {})"]


@pytest.mark.parametrize("lock", TOOLS)
async def test_each_lock_file_makes_the_environment(lock: str, judges: Fleet, tmp_path: Path) -> None:
    project = next(project for project in projects() if project.lock == lock)
    row = await visit(replace(project, pools=False), Sources(cache=CACHE), judges, tmp_path)
    assert (row.baseline_ok, row.env_ok) == (True, True), row.judgement
