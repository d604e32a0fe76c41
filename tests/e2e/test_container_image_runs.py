"""A task whose commands, tests and checks all run in a container image."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.container_images import with_python
from tests.documented import blocks
from tests.fleet_command import Shell
from tests.scripts import HELLO, LACKING, PROVIDE


@pytest.mark.slow  # quick: integration/test_image_registry.py
async def test_agents_and_checks_are_in_the_image_that_a_task_names(
    shell: Shell, repository: Path, tmp_path: Path
) -> None:
    image = with_python()
    name = image.layout(tmp_path / "images/python")
    # As the document has it, with the image and the task of here.
    here = {"oci:/srv/images/project:1.4": name, "Make the parser accept empty lines": HELLO}
    _, text = blocks("docs/environments.md")[0]
    explain, run = ([here.get(word, word) for word in shlex.split(line)[1:]] for line in text.splitlines())
    run += ["--json", "--repo", str(repository), "--agents", "1"]
    refused = await shell.fleet(*run)
    assert refused.code == 2 and "FLEET_IMAGE_FOLDERS" in refused.out
    shell = replace(shell, home=tmp_path / "home", more={"FLEET_IMAGE_FOLDERS": str(tmp_path / "images")})
    # What the image has, and the host has not; a Python that is the image's.
    check = "cat /etc/made && ! ls /usr/sbin/init /usr/bin/git && python3 -m pytest -q /testbed"
    explained = await shell.fleet(*explain, "--repo", str(repository))
    assert explained.code == 0 and image.digest in explained.out, explained.out + explained.err
    ran = await shell.fleet(*run, "--local", "--check", check)
    assert ran.code == 0, ran.out + ran.err
    # Nothing of the fleet in this process is among the results.
    (line,) = ran.out.splitlines()
    document = json.loads(line)
    assert document["verdict"] == "verified"
    said = str(document["baseline"])
    assert f"{name}@sha256:" in said and image.digest in said
    # The agent ran the repository's tests with the image's Python as well.
    own = next(one for one in document["candidates"][0]["checks"] if one["kind"] == "command")
    assert own["passed"] and "of the test" in own["output"], own
    assert document["candidates"][0]["answer"] == "Added hello_world; the tests pass."


# --- a repository whose tests lack something that no file names: an agent finds out what, once for all executions ---


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
