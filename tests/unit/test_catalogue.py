"""Which tools a run holds and which its model is shown."""

from dataclasses import replace
from pathlib import Path

from swe_ai_fleet.adapters.openai_model import WireWriter
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.task import Constraints, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.tools import Pipeline
from swe_ai_fleet.tools.catalogue import ToolAccess, open_toolkits
from swe_ai_fleet.tools.docker import DockerPolicy
from swe_ai_fleet.tools.policy import Policy

TASK = Task(task_id="t", kind=TaskKind.DELIBERATE, description="x", repo=RepoRef(location="/r"))


async def offered(root: Path, *, access: ToolAccess | None = None, task: Task = TASK) -> Toolbox:
    asked = frozenset(task.tools) | frozenset(task.constraints.allowed_tools)
    policy = Policy(role=task.role, allowed=asked, denied=frozenset(task.constraints.denied_tools))
    pipeline = Pipeline(policy=policy)
    workspace = Sandbox(SandboxPolicy()).workspace(root)
    async with open_toolkits(workspace, pipeline, access or ToolAccess(), task) as held:
        return Toolbox(held.toolkits, pipeline, idle=held.idle, unlisted=held.unlisted)


def names(box: Toolbox) -> list[str]:
    return [spec.name for spec in box.specs]


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
    without = replace(TASK, constraints=Constraints(denied_tools=("shell",)))
    assert "shell_run_command" not in names(await offered(tmp_path, task=without))
    assert {"docker_build", "docker_run"} <= set(by_role[Role.DEVOPS])
    assert {"db_postgresql_query", "db_describe_schema"} <= set(by_role[Role.DATA])
    assert not {name for name in by_role[Role.DEV] if name.startswith(("docker_", "db_", "http_"))}
    assert all(len(shown) <= 18 for shown in by_role.values())
