"""The examples as their readers run them: programs of their own against a real fleet."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml

from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.cluster import whole_way
from tests.conftest import FleetUnderTest
from tests.fleet_command import Shell, ran
from tests.scripts import HELLO, HELLO_FILES

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"


async def _stands(fleet: FleetUnderTest, task_id: str, said: str) -> None:
    """Whether the result of a task stands on the subject that a client named."""
    subject = said.partition("its result comes on ")[2].split()[0]
    assert "%2E" in subject
    running = fleet.running
    async with await nats.connect(running.nats_url, token=running.nats_token) as connection:
        stored = await connection.jetstream().get_last_msg("AGENT_RESULTS", subject)
    assert json.loads(stored.data or b"")["task_id"] == task_id


async def test_the_python_client_prints_the_patch(fleet: FleetUnderTest, repository: Path) -> None:
    running, name = fleet.running, f"v1.2-{uuid.uuid4().hex[:8]}"
    arguments = (running.address, running.token, str(repository), HELLO)
    told = await ran(sys.executable, "python_client.py", *arguments, name, cwd=EXAMPLES)
    assert told.code == 0, told.err
    await _stands(fleet, name, told.err)
    assert "append_file" in told.err
    assert "+def hello_world():" in told.out
    missing = await ran(sys.executable, "python_client.py", cwd=EXAMPLES)
    assert (missing.code, "python examples/python_client.py" in missing.err) == (1, True)


def _pipeline(path: Path) -> str:
    """What a pipeline of the examples runs, its set-up of the machine aside."""
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    if "jobs" not in document:
        return "\n".join(document["fleet"]["script"])
    job: dict[str, Any] = document["jobs"]["solve"]
    assert set(job["env"]) == {"FLEET_SERVER", "FLEET_TOKEN", "TASK", "CHECK", "TASK_ID"}
    # A value that a runner puts into a script is code: those that callers choose go through variables.
    assert all("inputs." not in step.get("run", "") for step in job["steps"])
    return "\n".join(step["run"] for step in job["steps"] if step.get("name") in ("Solve", "Push"))


async def test_ci_jobs_apply_the_patch_and_push_it(
    fleet: FleetUnderTest, model_server: ScriptedModelServer, tmp_path: Path
) -> None:
    job = (EXAMPLES / "ci_job.sh").read_text()
    whole = make_repository(tmp_path / "whole", {**HELLO_FILES, "ci/fleet_job.sh": job})
    git(whole, "commit", "--quiet", "--allow-empty", "-m", "later")
    git(tmp_path, "clone", "--quiet", "--bare", str(whole), "origin.git")
    # Hosted runners check out one commit, and the fleet is elsewhere.
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{tmp_path}/origin.git", "repository")
    repository = tmp_path / "repository"
    programs = tmp_path / "programs"
    programs.mkdir()
    command = programs / "fleet"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m swe_ai_fleet.cli.main "$@"\n')
    command.chmod(0o755)
    shell = Shell(home=fleet.settings.home, model_url=model_server.url)
    variables = dict(shell.variables) | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TASK_ID": f"ci-{uuid.uuid4().hex[:8]}",
        "FLEET_SERVER": fleet.running.address,
        "FLEET_TOKEN": fleet.running.token,
    }
    branch, start = f"fleet/{variables['TASK_ID']}", git(repository, "rev-parse", "HEAD")
    # Started again, it is the same task, and takes no agent's time.
    for name in ("github-actions.yaml", "gitlab-ci.yaml"):
        script = _pipeline(EXAMPLES / "ci" / name)
        told = await ran("bash", "-euc", script, cwd=repository, **variables, TASK=HELLO, AGENTS="1")
        assert told.code == 0, told.out + told.err
        assert "hello_world" in git(tmp_path / "origin.git", "show", f"{branch}:utils.py")
        assert git(repository, "diff", "--name-only", start, branch) == "utils.py"
        git(repository, "switch", "--quiet", "main")
        git(tmp_path / "origin.git", "branch", "-D", branch)
    refused = await ran("sh", "ci/fleet_job.sh", cwd=repository, **variables, TASK="")
    assert refused.code != 0


async def test_the_node_client_follows_to_the_end(fleet: FleetUnderTest, repository: Path) -> None:
    node = shutil.which("node")
    modules = os.environ.get("FLEET_TEST_NODE_MODULES") or str(EXAMPLES / "node_client" / "node_modules")
    if node is None or not (Path(modules) / "@grpc" / "grpc-js").is_dir():
        pytest.skip("needs node, and `npm install` in examples/node_client (or FLEET_TEST_NODE_MODULES)")
    running = fleet.running
    arguments = ("node_client/client.js", running.address, running.token, str(repository), HELLO)
    name = f"v1.3-{uuid.uuid4().hex[:8]}"
    told = await ran(node, *arguments, name, cwd=EXAMPLES, NODE_PATH=modules)
    assert told.code == 0, told.err
    await _stands(fleet, name, told.err)
    assert json.loads(told.out)["status"] == "DELIBERATION_STATUS_COMPLETED"
    wrong = await ran(node, *arguments[:2], "wrong", *arguments[3:], cwd=EXAMPLES, NODE_PATH=modules)
    assert (wrong.code, "UNAUTHENTICATED" in wrong.err) == (1, True)


# --- what the Jobs in `deploy/k8s/tests` and the pipelines in `examples` run, tried against a fleet on this machine


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
    executions = set[str]()
    for _ in range(2):
        # A step that is run again finds the same execution.
        told = await ran("sh", "-c", script, PATH=path, TASK_ID="pipeline-1", AGENTS="1", **chosen)
        assert told.code == 0, told.out + told.err
        executions.add(json.loads((work / "result.json").read_text())["execution_id"])
    assert len(executions) == 1
    git(repository, "apply", "--index", "--", str(work / "change.patch"))
    assert "def hello_world" in (repository / "utils.py").read_text()
