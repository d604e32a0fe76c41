"""A task whose commands, tests and checks all run in a container image."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_ai_fleet.testing.repositories import make_repository
from tests.container_images import with_python
from tests.fleet_command import Shell
from tests.scripts import HELLO, HELLO_FILES


@pytest.mark.slow  # quick: integration/test_container_images.py
async def test_agents_and_checks_are_in_the_image_that_a_task_names(shell: Shell, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    image = with_python()
    name = image.layout(tmp_path / "images/python")
    run = ("run", "--json", "--repo", str(repository), "--agents", "1", "--image", name)
    refused = await shell.fleet(*run, HELLO)
    assert refused.code != 0 and "FLEET_IMAGE_FOLDERS" in refused.err
    folders = {"FLEET_IMAGE_FOLDERS": str(tmp_path / "images")}
    check = ("--check", "cat /etc/made /testbed/utils.py && ! ls /usr/bin")
    ran = await shell.fleet(*run, *check, HELLO, **folders)
    assert (ran.code, ran.document["verdict"]) == (0, "verified"), ran.out + ran.err
    said = str(ran.document["baseline"])
    assert f"{name}@sha256:" in said and image.digest in said
    # By the repository's own tests, run by the image's Python, a candidate is verified as well.
    tested = await shell.fleet(*run, f"{HELLO} again", **folders)
    assert (tested.code, tested.document["verdict"]) == (0, "verified"), tested.out + tested.err
    suites = tested.document["baseline"]["tests"]["suites"]
    assert [suite["tests"]["passed"] for suite in suites] == [1], suites
