"""A repository whose tests lack something that no file names: an agent finds out what, once for all executions."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.fleet_command import Shell
from tests.scripts import LACKING, PROVIDE

FILES = {
    "weather.py": "import almanac\n\n\ndef sun():\n    return almanac.SUN + 1\n",
    "test_weather.py": "import weather\n\n\ndef test_sun():\n    assert weather.sun() == 5\n",
    "test_plain.py": "def test_plain():\n    assert True\n",
}


def asked(server: ScriptedModelServer, repository: Path) -> int:
    """How many requests of environment runs the model server got for a repository."""
    told = [json.dumps(body["messages"]) for body in server.bodies]
    return sum("You make a repository's own tests run" in text and repository.name in text for text in told)


@pytest.mark.slow  # quick: integration tests of derivations
async def test_what_an_agent_finds_out_is_tried_kept_and_used_again(
    shell: Shell, tmp_path: Path, model_server: ScriptedModelServer
) -> None:
    repository = make_repository(tmp_path / "lacking", FILES)
    run = ("run", "--json", "--repo", str(repository), "--agents", "1")
    first = await shell.fleet(*run, f"{LACKING} sun() gives 5")
    document = first.document
    assert (first.code, document["verdict"]) == (0, "verified"), first.err
    found = document["environment_run"]
    assert found["kept"] and found["proposal"]["setup"] == [PROVIDE], found
    assert "cannot be collected: test_weather.py" in found["before"]
    assert found["after"] == "1 pass, 1 fail: test_weather.py::test_sun"
    assert document["baseline"]["tests"]["suites"][0]["tests"]["passed"] == 1
    # It has an audit chain like any other run, and is no candidate.
    assert "environment" in {agent["agent_id"] for agent in document["agents"]}
    assert [one["candidate_id"] for one in document["candidates"]] == ["agent-dev-1"]
    verified = await shell.fleet("audit", "verify", document["execution_id"])
    assert verified.code == 0 and "environment" in verified.out

    exported = await shell.fleet("env", "export", document["execution_id"])
    assert shlex.split(exported.out) == ["--setup", PROVIDE]
    before = asked(model_server, repository)
    again = await shell.fleet(*run, f"{LACKING} sun() gives 5, once more")
    assert (again.code, again.document["environment_run"]) == (0, None)
    learned = again.document["baseline"]["tests"]["report"]["learned"]
    assert learned["setup"] == [PROVIDE] and learned["source"] == found["proposal"]["source"]
    assert asked(model_server, repository) == before
    # What a baseline was tested with can be exported as well.
    locked = await shell.fleet("env", "export", "--lock", again.document["execution_id"])
    assert locked.out == "almanac==1.0\n"
    shown = await shell.fleet("show", again.document["execution_id"])
    assert f"fleet env export {again.document['execution_id']}" in shown.out
