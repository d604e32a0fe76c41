"""What the Jobs in `deploy/k8s/tests` and the pipelines in `examples` run, tried against a fleet on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swe_ai_fleet.testing.repositories import git, make_repository
from tests.cluster import whole_way
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO, HELLO_FILES

SUBMIT = Path(__file__).parents[2] / "examples" / "pipelines" / "submit.sh"


def _told(fleet: FleetUnderTest, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("FLEET_SERVER", fleet.running.address)
    monkeypatch.setenv("FLEET_TOKEN", fleet.running.token)
    monkeypatch.setenv("FLEET_HOME", str(home))


@pytest.mark.slow
async def test_the_whole_way_ends_with_a_patch(
    fleet: FleetUnderTest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _told(fleet, monkeypatch, tmp_path / "home")
    patch = await asyncio.to_thread(whole_way.go, tmp_path, agents=1)
    assert "+def hello_world():" in patch
    monkeypatch.setenv("FLEET_TOKEN", "of somebody else")
    with pytest.raises(whole_way.Astray, match="token"):
        await asyncio.to_thread(whole_way.go, tmp_path / "again", agents=1)


@pytest.mark.slow
async def test_the_script_of_the_pipelines_leaves_a_patch_that_applies(
    fleet: FleetUnderTest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _told(fleet, monkeypatch, tmp_path / "home")
    repository, work = make_repository(tmp_path / "repository", HELLO_FILES), tmp_path / "work"
    work.mkdir()
    # In its container /scratch is a volume.
    script = SUBMIT.read_text().replace("/scratch/", f"{work}/")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    chosen = {"TASK": HELLO, "REPOSITORY": str(repository), "REVISION": git(repository, "branch", "--show-current")}
    told = {**os.environ, "PATH": path, "TASK_ID": "pipeline-1", "AGENTS": "1", **chosen}
    executions = set[str]()
    for _ in range(2):
        # A step that is run again finds the same execution.
        run = await asyncio.to_thread(subprocess.run, ["sh", "-c", script], env=told, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        executions.add(json.loads((work / "result.json").read_text())["execution_id"])
    assert len(executions) == 1
    git(repository, "apply", "--index", "--", str(work / "change.patch"))
    assert "def hello_world" in (repository / "utils.py").read_text()
