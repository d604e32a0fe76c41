"""`fleet study` against a real fleet: more candidates win what one does not, and nothing is run twice."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from swe_ai_fleet.testing.repositories import make_repository
from tests.fleet_command import Shell
from tests.scripts import FAILING, GREETINGS, HELLO_FILES


@pytest.mark.slow
async def test_a_study_measures_what_more_candidates_are_worth(shell: Shell, tmp_path: Path) -> None:
    make_repository(tmp_path / "widgets", HELLO_FILES)
    file = tmp_path / "tasks.jsonl"
    # What a record says of agents is not what a study asks.
    records = [
        {"task_id": "greet", "task": f"{GREETINGS} Greet the world.", "repo": "widgets", "agents": 2},
        {"task_id": "wrong", "task": f"{FAILING} Greet.", "repo": "widgets"},
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    name = f"s{uuid.uuid4().hex[:6]}"
    directory = tmp_path / "study"
    study = ("study", str(file), "--candidates", "1,3", "--rounds", "0", "--name", name, "--output", str(directory))
    process = await shell.start(*study, "--stagger", "0")
    # Eight runs of agents take their time on a busy machine.
    _, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    shown = (directory / "report.md").read_text()
    assert "0% (0/2, 0% to 66%)" in shown and "50% (1/2, 9% to 91%)" in shown and "+1 / -0" in shown
    one, three = json.loads((directory / "report.json").read_text())["arms"]
    assert (one["candidates"], one["passed"]["passed"], one["passed"]["of"]) == (1, 0, 2)
    assert (three["candidates"], three["passed"]["passed"]) == (3, 1)
    assert (three["gained"], three["lost"]) == (1, 0)
    assert [(number, rate["passed"], rate["of"]) for number, rate in three["rounds"]] == [(0, 2, 6)]
    assert three["tokens"] > one["tokens"] > 0
    assert three["model_calls"] > one["model_calls"] > 0

    # Once more: everything has ended, so nothing is run, and the report is the same.
    rows = (directory / "c3-r1.results.jsonl").read_text()
    again = (await shell.fleet(*study, "--stagger", "0", "--json")).document
    assert again["arms"] == [one, three] and again["missing"] == 0
    assert (directory / "c3-r1.results.jsonl").read_text() == rows
    assert len((directory / "details.jsonl").read_text().split()) > 0
