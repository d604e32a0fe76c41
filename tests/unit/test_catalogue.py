"""Which tools a run holds and which its model is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.network import NetworkGrant
from swe_ai_fleet.domain.task import Constraints, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.tools import FunctionTool, Pipeline
from swe_ai_fleet.tools.access import ToolAccess
from swe_ai_fleet.tools.builtin import BuiltinSettings
from swe_ai_fleet.tools.catalogue import open_toolkits
from swe_ai_fleet.tools.docker import DockerPolicy
from swe_ai_fleet.tools.git.grants import RemoteGrant

TASK = Task(task_id="t", kind=TaskKind.DELIBERATE, description="x", repo=RepoRef(location="/r"))
NETWORK = Environment(network=NetworkGrant(hosts=("example.org",)))
REMOTE = RemoteGrant(name="origin", url="https://example.org/a")


def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def shown(
    root: Path, *, access: ToolAccess | None = None, environment: Environment | None = None, task: Task = TASK
) -> set[str]:
    pipeline = Pipeline()
    workspace = Sandbox(SandboxPolicy()).workspace(root, environment=environment or Environment())
    async with open_toolkits(workspace, pipeline, access or ToolAccess(), task) as held:
        return {spec.name for spec in Toolbox(held.toolkits, pipeline, idle=held.idle).specs}


async def test_what_everybody_is_shown(tmp_path: Path) -> None:
    names = await shown(tmp_path)
    assert {"files_read_file", "git_commit", "tests_run", "shell_run_command", "final_answer"} <= names
    assert not {name for name in names if name.startswith(("http_", "db_", "docker_"))}
    assert not names & {"git_push", "tests_go_test", "calculator", "web_search", "search_wikipedia"}


@pytest.mark.parametrize(
    ("access", "environment", "more"),
    [
        (ToolAccess(), NETWORK, {"http_get", "http_post", "read_webpage"}),
        (ToolAccess(databases={"a": "sqlite:///a"}), None, {"db_sqlite_query", "db_explain"}),
        (ToolAccess(remotes=(REMOTE,)), None, {"git_clone", "git_fetch", "git_pull", "git_push"}),
        (ToolAccess(docker=DockerPolicy(host="unix:///nobody.sock")), None, {"docker_run", "docker_ps"}),
        (ToolAccess(builtin=BuiltinSettings(search_url="http://localhost:1")), None, {"web_search"}),
        (ToolAccess(plugins=(FunctionTool(word_count),)), None, {"word_count"}),
    ],
)
async def test_what_is_configured_is_shown(
    tmp_path: Path, access: ToolAccess, environment: Environment | None, more: set[str]
) -> None:
    assert more <= await shown(tmp_path, access=access, environment=environment)
    assert not more & await shown(tmp_path)


async def test_what_a_task_names_is_shown(tmp_path: Path) -> None:
    named = replace(TASK, tools=("calculator",), constraints=Constraints(allowed_tools=("tests",)))
    names = await shown(tmp_path, task=named)
    assert {"calculator", "tests_go_test"} <= names
    assert "python_executor" not in names


async def test_what_is_not_shown_can_be_called_and_says_what_is_missing(tmp_path: Path) -> None:
    pipeline = Pipeline()
    workspace = Sandbox(SandboxPolicy()).workspace(tmp_path)
    calls = {
        "git_push": {},
        "http_get": {"url": "http://example.org/"},
        "db_redis_command": {"connection": "main", "command": "PING"},
        "calculator": {"expression": "6 * 7"},
        "docker_ps": {},
    }
    async with open_toolkits(workspace, pipeline, ToolAccess(), TASK) as held:
        box = Toolbox(held.toolkits, pipeline, idle=held.idle)
        observations = await box.call_all(
            [
                ToolCall(call_id=name, model_call_id="", name=name, arguments=json.dumps(given))
                for name, given in calls.items()
            ]
        )
    results = dict(zip(calls, (seen.result for seen in observations), strict=True))
    assert {name: result.outcome for name, result in results.items()} == {
        "git_push": Outcome.REFUSED,
        "http_get": Outcome.REFUSED,
        "db_redis_command": Outcome.ERROR,
        "calculator": Outcome.SUCCESS,
        "docker_ps": Outcome.INVALID,
    }
    assert "there is no tool 'docker_ps'" in results["docker_ps"].error
