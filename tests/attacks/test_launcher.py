"""Variables of callers and repositories, aimed at what starts the sandbox: none of them is there before it stands."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import Constraints, EnvironmentSpec, RepoRef, Task, TaskKind, TaskMcpServer
from swe_ai_fleet.sandbox import Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess
from tests.confinement import CONFINED, needs_bwrap, shell

_STARTERS = ("LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTHONHOME", "NODE_OPTIONS", "PERL5OPT")


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    """A directory of the host in which the loader of any process leaves a file, if it is told to."""
    (tmp_path / "workspace").mkdir()
    path = tmp_path / "trail"
    path.mkdir()
    return path


def orders(trail: Path) -> dict[str, str]:
    """Variables that make the dynamic loader write into a directory, before the program itself begins."""
    return {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": f"{trail}/loader"}


def test_control_a_process_of_the_host_leaves_a_trail(trail: Path) -> None:
    subprocess.run(["/bin/sh", "-c", ":"], env=orders(trail), check=True)
    assert list(trail.iterdir())


@pytest.mark.parametrize("rung", CONFINED)
async def test_no_launcher_runs_with_a_callers_variables(rung: Rung, tmp_path: Path, trail: Path) -> None:
    environment = Environment(variables={**orders(trail), "SAID": "it's $HOME\n`id`"})
    async with Sandbox(SandboxPolicy(rung=rung)).workspace(
        tmp_path / "workspace", environment=environment
    ) as workspace:
        found = await workspace.run(shell('printf %s "$SAID"'))
    assert not list(trail.iterdir())
    # Inside, commands have them as they were given.
    assert found.stdout.text().endswith("it's $HOME\n`id`")


@needs_bwrap
async def test_no_launcher_of_a_program_that_stays_has_them(tmp_path: Path, trail: Path) -> None:
    command = InteractiveCommand(argv=("sh", "-c", 'printf "%s" "$SAID"'), variables={**orders(trail), "SAID": "a 'b'"})
    process = await InteractiveProcess.start(
        tmp_path / "workspace", command, policy=SandboxPolicy(rung=Rung.BUBBLEWRAP)
    )
    try:
        said = await process.stdout.read()
    finally:
        await process.kill()
    assert not list(trail.iterdir())
    assert said.endswith(b"a 'b'")


@pytest.mark.parametrize("name", _STARTERS)
def test_loaders_and_start_up_are_refused_by_name(name: str) -> None:
    task = Task(
        kind=TaskKind.DELIBERATE, task_id="t", tenant="default", description="Do it.", repo=RepoRef(location="/r")
    )
    given = EnvironmentSpec(variables={name: "/environment/evil.so"})
    with pytest.raises(InvalidRequest) as refused:
        replace(task, environment=given).validated(max_agents=8)
    assert refused.value.field == f"environment.variables[{name}]"
    server = TaskMcpServer(name="s", command=("x",), variables={name: "y"})
    with pytest.raises(InvalidRequest) as refused:
        replace(task, constraints=Constraints(mcp_servers=(server,))).validated(max_agents=8)
    assert refused.value.field == f"constraints.mcp_servers[0].variables[{name}]"
