"""`fleet study` against a real fleet: more candidates win what one does not, and nothing is run twice."""

from __future__ import annotations

import json
import uuid
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from swe_ai_fleet.cli.batch.plan import Plan
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.place import fleet_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.study.run import Study, study
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.scripts import FAILING, GREETINGS, HELLO_FILES


def a_screen(*, json: bool = False) -> Screen:
    return Screen(json=json, out=Console(file=StringIO(), width=400), err=Console(file=StringIO(), width=160))


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.slow
async def test_a_study_measures_what_more_candidates_are_worth(fleet: FleetUnderTest, tmp_path: Path) -> None:
    make_repository(tmp_path / "widgets", HELLO_FILES)
    file = tmp_path / "tasks.jsonl"
    # What a record says of agents is not what a study asks.
    records = [
        {"task_id": "greet", "task": f"{GREETINGS} Greet the world.", "repo": "widgets", "agents": 2},
        {"task_id": "wrong", "task": f"{FAILING} Greet.", "repo": "widgets"},
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    name = f"s{uuid.uuid4().hex[:6]}"
    plan = Plan(
        file=file,
        name=name,
        order=Order(description="", rounds=0, deliberate_only=True),
        results=tmp_path / "unused",
        predictions=tmp_path / "unused",
        stagger=0,
    )
    wanted = Study(plan=plan, candidates=(1, 3), repeats=1, directory=tmp_path / "study")

    async def run(screen: Screen) -> Exit:
        return await study(screen, fleet_client(fleet.settings, server="", token=""), wanted)

    screen = a_screen()
    assert await run(screen) is Exit.ACCEPTED, printed(screen.err)
    assert "0% (0/2, 0% to 66%)" in printed(screen.out) and "50% (1/2, 9% to 91%)" in printed(screen.out)
    one, three = json.loads((wanted.directory / "report.json").read_text())["arms"]
    assert (one["candidates"], one["passed"]["passed"], one["passed"]["of"]) == (1, 0, 2)
    assert (three["candidates"], three["passed"]["passed"]) == (3, 1)
    assert (three["gained"], three["lost"]) == (1, 0)
    assert [(number, rate["passed"], rate["of"]) for number, rate in three["rounds"]] == [(0, 2, 6)]
    assert three["tokens"] > one["tokens"] > 0
    assert three["model_calls"] > one["model_calls"] > 0
    assert "+1 / -0" in (wanted.directory / "report.md").read_text()

    # Once more: everything has ended, so nothing is run, and the report is the same.
    rows = (wanted.directory / "c3-r1.results.jsonl").read_text()
    again = a_screen(json=True)
    assert await run(again) is Exit.ACCEPTED
    told = json.loads(printed(again.out))
    assert told["arms"] == [one, three] and told["missing"] == 0
    assert (wanted.directory / "c3-r1.results.jsonl").read_text() == rows
    assert len((wanted.directory / "details.jsonl").read_text().split()) > 0
