"""Which tools a run holds and which its model is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.openai_model.wire import WireWriter
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.network import NetworkGrant
from swe_ai_fleet.domain.task import ApprovalPolicy, Constraints, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.tools import FunctionTool, Pipeline
from swe_ai_fleet.tools.builtin import BuiltinSettings
from swe_ai_fleet.tools.catalogue import ToolAccess, open_toolkits, operations, prompt_tokens
from swe_ai_fleet.tools.docker import DockerPolicy
from swe_ai_fleet.tools.git.grants import RemoteGrant
from swe_ai_fleet.tools.policy import Policy

TASK = Task(task_id="t", kind=TaskKind.DELIBERATE, description="x", repo=RepoRef(location="/r"))
REMOTE = RemoteGrant(name="origin", url="https://example.org/a")
NETWORK = Environment(network=NetworkGrant(hosts=("example.org",)))


def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def offered(
    root: Path, *, access: ToolAccess | None = None, environment: Environment | None = None, task: Task = TASK
) -> Toolbox:
    asked = frozenset(task.tools) | frozenset(task.constraints.allowed_tools)
    policy = Policy(role=task.role, allowed=asked, denied=frozenset(task.constraints.denied_tools))
    pipeline = Pipeline(policy=policy)
    workspace = Sandbox(SandboxPolicy()).workspace(root, environment=environment or Environment())
    async with open_toolkits(workspace, pipeline, access or ToolAccess(), task) as held:
        return Toolbox(held.toolkits, pipeline, idle=held.idle, unlisted=held.unlisted)


def names(box: Toolbox) -> list[str]:
    return [spec.name for spec in box.specs]


def listed(box: Toolbox) -> list[str]:
    """The tools that the model can ask for."""
    told = next(spec.description for spec in box.specs if spec.name == "request_tools")
    return told.partition(": ")[2].split(", ")


async def test_a_developer_is_shown_eight_functions_of_few_characters(tmp_path: Path) -> None:
    box = await offered(tmp_path)
    assert names(box) == [
        "files_read_file", "files_edit_file", "files_search_in_files", "git_diff", "tests_run", "shell_run_command",
        "request_tools", "final_answer",
    ]  # fmt: skip
    # As they go out; what is for programs, or null where it is left out, is in the catalogue alone.
    writer = WireWriter()
    sent = writer.native(writer.conversation(()), box.specs, head=b"", strict=False).decode().partition('"tools":')[2]
    assert len(sent) <= 3_500
    assert not [
        word for word in ("anyOf", "expected_sha256", "idle_timeout", "max_results", "deselect") if word in sent
    ]


async def test_each_role_is_shown_what_it_needs(tmp_path: Path) -> None:
    access = ToolAccess(databases={"a": "postgresql://x/a"}, docker=DockerPolicy(host="unix:///nobody.sock"))
    by_role = {role: names(await offered(tmp_path, access=access, task=replace(TASK, role=role))) for role in Role}
    assert not {"shell_run_command", "files_edit_file", "git_commit"} & set(by_role[Role.ARCHITECT])
    assert {"files_read_file", "files_repo_map", "git_log"} <= set(by_role[Role.ARCHITECT])
    assert "tests_lint" in by_role[Role.QA]
    assert {"docker_build", "docker_run"} <= set(by_role[Role.DEVOPS])
    assert {"db_postgresql_query", "db_describe_schema"} <= set(by_role[Role.DATA])
    assert not {name for name in by_role[Role.DEV] if name.startswith(("docker_", "db_", "http_"))}
    assert all(len(shown) <= 18 for shown in by_role.values())


async def test_profiles_cost_a_fraction_of_everything(tmp_path: Path) -> None:
    box = await offered(tmp_path)
    shown, everything = prompt_tokens(box.specs), prompt_tokens(one.spec for one in operations().values())
    assert 800 < shown < everything / 3
    assert prompt_tokens(()) == 0
    assert prompt_tokens(box.specs[:1]) < prompt_tokens(box.specs[:2])


@pytest.mark.parametrize(
    ("access", "environment", "more"),
    [
        (ToolAccess(), NETWORK, {"http_get", "http_post", "read_webpage"}),
        (ToolAccess(remotes=(REMOTE,)), None, {"git_clone", "git_fetch", "git_pull", "git_push"}),
        (ToolAccess(databases={"a": "sqlite:///a"}), None, {"db_sqlite_query", "db_explain"}),
        (ToolAccess(docker=DockerPolicy(host="unix:///nobody.sock")), None, {"docker_run", "docker_ps"}),
        (ToolAccess(builtin=BuiltinSettings(search_url="http://localhost:1")), None, {"web_search"}),
    ],
)
async def test_the_model_is_told_of_what_is_configured_and_of_nothing_else(
    tmp_path: Path, access: ToolAccess, environment: Environment | None, more: set[str]
) -> None:
    told, without = listed(await offered(tmp_path, access=access, environment=environment)), await offered(tmp_path)
    assert more <= set(told)
    assert not more & set(listed(without))
    # Of what commands do as well is told where there is no shell, or where each command may wait for a person.
    asks = replace(TASK, approval=ApprovalPolicy.RISKY)
    quiet = replace(TASK, constraints=Constraints(denied_tools=("shell",)))
    assert not {"git_log", "git_status", "git_commit", "files_move_file"} & set(listed(without))
    assert {"files_write_file", "tests_lint"} <= set(listed(without))
    for task in (asks, quiet, replace(TASK, role=Role.ARCHITECT)):
        told = listed(await offered(tmp_path, access=access, environment=environment, task=task))
        assert {"git_commit", "files_move_file"} <= set(told)


async def test_what_a_task_asks_for_and_plug_ins_are_shown(tmp_path: Path) -> None:
    assert "word_count" in names(await offered(tmp_path, access=ToolAccess(plugins=(FunctionTool(word_count),))))
    named = replace(TASK, tools=("calculator",), constraints=Constraints(allowed_tools=("tests",)))
    box = await offered(tmp_path, task=named)
    assert {"calculator", "tests_run", "tests_go_test"} <= set(names(box))
    assert not {"python_executor", "files_read_file", "request_tools"} & set(names(box))
    named = replace(TASK, constraints=Constraints(allowed_hosts=("example.org",)))
    assert "http_get" in names(await offered(tmp_path, environment=NETWORK, task=named))
    assert "http_get" not in names(await offered(tmp_path, environment=NETWORK))
    assert "propose_approach" in names(await offered(tmp_path, task=replace(TASK, approval=ApprovalPolicy.PLAN)))
    assert "propose_approach" not in listed(await offered(tmp_path))


async def test_what_is_not_shown_can_be_called_and_says_what_is_missing(tmp_path: Path) -> None:
    pipeline, workspace = Pipeline(), Sandbox(SandboxPolicy()).workspace(tmp_path)
    redis = {"connection": "main", "command": "PING"}
    calls = {
        "git_push": ({}, Outcome.REFUSED), "http_get": ({"url": "http://example.org/"}, Outcome.REFUSED),
        "db_redis_command": (redis, Outcome.ERROR), "calculator": ({"expression": "6 * 7"}, Outcome.SUCCESS),
        "docker_ps": ({}, Outcome.INVALID),
    }  # fmt: skip
    async with open_toolkits(workspace, pipeline, ToolAccess(), TASK) as held:
        box = Toolbox(held.toolkits, pipeline, idle=held.idle)
        for name, (given, outcome) in calls.items():
            call = ToolCall(call_id=name, model_call_id="", name=name, arguments=json.dumps(given))
            (seen,) = await box.call_all([call])
            assert seen.result.outcome is outcome, name
    assert "there is no tool 'docker_ps'" in seen.result.error
