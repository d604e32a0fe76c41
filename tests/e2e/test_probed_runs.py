"""`fleet run` has the task's words turned into probes, which tell candidates apart that no test tells apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_ai_fleet.testing.repositories import make_repository
from tests.fleet_command import Shell
from tests.scripts import HELLO_FILES, PROBED

TASK = f"{PROBED} Add hello_world() to utils.py: it returns 'Hello, World!'"
FILES = {
    "utils.py": HELLO_FILES["utils.py"],
    "test_utils.py": "import utils\n\n\ndef test_one():\n    assert utils.one() == 1\n",
}


@pytest.mark.slow  # quick: unit/test_probed_executions.py, integration/test_examination.py
async def test_a_probe_verifies_the_right_one_of_two_that_break_nothing(shell: Shell, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "probed", FILES)
    ran = await shell.fleet("run", "--json", "--repo", str(repository), "--agents", "2", "--rounds", "0", TASK)
    document = ran.document
    assert (ran.code, document["verdict"]) == (0, "verified"), ran.err
    said, _, held = document["checklist"]["requirements"]
    assert (said["quote"], said["met_before"], held["met_before"]) == ("it returns 'Hello, World!'", False, True)
    assert "no attribute 'hello_world'" in said["seen"]
    verdicts = {one["candidate_id"]: one["verdict"] for one in document["candidates"]}
    assert sorted(verdicts.values()) == ["unverified", "verified"]
    assert verdicts[document["winner"]] == "verified"
    (probes,) = document["examination"]["sets"]
    assert probes["candidates"] == ["the statement"] and len(probes["tests"]) == 2
    assert "'Hello, World!'" in document["diff"]
    # A run of its own in the audit, and no candidate.
    assert "checklist" in {agent["agent_id"] for agent in document["agents"]}
    shown = await shell.fleet("show", document["execution_id"])
    assert "3 requirements of the statement, 3 with a probe; 2 of these fail on the untouched commit" in shown.out
    assert "probes of the statement fail without the change and pass with it" in " ".join(shown.out.split())
