"""A task whose commands, tests and checks all run in a container image."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.testing.repositories import make_repository
from tests.container_images import with_python
from tests.documented import blocks
from tests.fleet_command import Shell
from tests.scripts import HELLO, HELLO_FILES


@pytest.mark.slow  # quick: integration/test_container_images.py
async def test_agents_and_checks_are_in_the_image_that_a_task_names(shell: Shell, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
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
