"""What nodes of workflows have done for real: clones, git, tools, a model over HTTP; the log in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.answering import AnswerRun, OperateRun
from swe_ai_fleet.agents.run_deps import RunDeps, RunRecorder
from swe_ai_fleet.domain.assignment import AnswerAssignment, OperateAssignment
from swe_ai_fleet.domain.audit import verify
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.event import ModelReplied, RunFinished, RunStarted, ToolFinished
from swe_ai_fleet.domain.run import fold_run
from swe_ai_fleet.domain.task import ApprovalPolicy, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.domain.workflow import AgentConfig
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.testing import Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.secrets import Secrets
from tests.environments import provider_at
from tests.recorded_runs import cut

SECRET = "hunter2-hunter2-hunter2"


class World:
    """A provider, a model server whose words can be chosen, and a task."""

    def __init__(self, tmp_path: Path, server: ScriptedModelServer, model: OpenAIChatModel) -> None:
        self.provider = provider_at(tmp_path)
        self.server = server
        self.log = MemoryLog()
        deps = RunDeps(models={"": model}, mask=Secrets((SECRET,)))
        self.services = RunRecorder(deps=deps, log=self.log, blobs=self.log, host="test")
        repo = RepoRef(location=str(make_repository(tmp_path / "repository", {"app.py": "a = 1\n"})))
        self.task = Task(task_id="t", kind=TaskKind.WORKFLOW, description="flow", repo=repo)

    def says(self, *turns: Turn | Failure) -> None:
        self.server.script = Script.of(*turns)

    @asynccontextmanager
    async def clone(self, repo: RepoRef | None = None) -> AsyncIterator[Any]:
        pinned = await self.provider.pin(self.task.tenant, repo or self.task.repo)
        async with self.provider.open(self.task.execution_id, "node", pinned, Environment()) as clone:
            yield clone

    async def ran(self, run: Any, kind: Any, **assigned: Any) -> Any:
        """What comes of a run on an assignment in a fresh clone; `left` is what it leaves there."""
        repository = await self.provider.pin(self.task.tenant, self.task.repo)
        assignment = kind(execution_id=self.task.execution_id, task=self.task, repository=repository, **assigned)
        async with self.clone() as clone:
            result = await run(recorder=self.services).run(assignment, clone)
            self.left = sorted(path.name for path in clone.root.iterdir() if path.name != ".git")
        return result

    async def answer(self, *, generation: int = 1, background: str = "", **config: Any) -> Any:
        parts = {"query": "What is a?", "background": background, "schema": {}, "generation": generation}
        config = {"agent_id": "node-ask-1", "config": AgentConfig(**config)}
        return await self.ran(AnswerRun, AnswerAssignment, **parts, **config)

    async def operate(self, tool: str, arguments: str, *, generation: int = 1) -> ToolResult:
        parts = {"tool": tool, "arguments": arguments, "generation": generation}
        return await self.ran(OperateRun, OperateAssignment, agent_id="node-call-1", **parts)

    def bodies(self, kind: type) -> list:
        return [event.body for event in self.log.events if isinstance(event.body, kind)]

    @property
    def asked(self) -> int:
        """How often an agent was asked; what the model can do is found out with other prompts."""
        return sum(str(one["messages"][0]["content"]).startswith("You are an agent") for one in self.server.bodies)

    def sound(self, agent_id: str) -> bool:
        """Whether the audit chain of a run holds."""
        return verify(fold_run(self.log.events, agent_id).entries) is None


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with ScriptedModelServer(Script()) as server, OpenAIChatModel(base_url=server.url, model="scripted") as model:
        yield World(tmp_path, server, model)


def call(name: str, **arguments: Any) -> Turn:
    return Turn(tool_calls=((name, arguments),))


async def test_an_agent_looks_around_and_answers(world: World):
    world.says(call("files_read_file", path="app.py"), call("final_answer", result=f"a is 1, {SECRET}"))
    answer = await world.answer(use_tools=True, system_prompt="You know Python.", background="a was 2 once")
    assert (answer.error, answer.stop_reason) == ("", StopReason.FINAL_ANSWER)
    assert answer.text.startswith("a is 1, ")
    assert answer.tools == ("files_read_file",)
    assert SECRET not in answer.text
    (started,) = world.bodies(RunStarted)
    assert "You know Python." in started.messages[0].content
    assert "a was 2 once" in started.messages[1].content
    assert "lines that begin with <<<" in started.messages[1].content  # how what is remembered is fenced off
    assert not {"files_write_file", "shell_run_command", "web_search"} & set(started.tools)
    assert world.sound("node-ask-1")


async def test_nodes_that_name_them_have_memory_sub_agents_and_more_tools(world: World):
    plan = Turn(content='{"plan": ["Look", "Change"], "reasoning": "In this order."}')
    world.says(plan)
    planned = await world.operate("call_planner", '{"goal": "Change a"}')
    other = {"agent_id": "node-call-2", "tool": "search_memory", "arguments": '{"entities": ["Stripe"]}'}
    searched = await world.ran(OperateRun, OperateAssignment, **other)
    assert (planned.metadata["plan"], searched.metadata["gaps"]) == (["Look", "Change"], ["Stripe"])
    (finished, _) = world.bodies(RunFinished)
    assert (finished.usage.model_calls, finished.usage.tool_calls) == (1, 1)
    asking = call("request_tools", names=["files_read_file", "files_write_file"])
    world.says(asking, call("files_read_file", path="app.py"), call("final_answer", result="a is 1"))
    answer = await world.answer(use_tools=True, tools=["request_tools", "search_memory"])
    assert (answer.text, answer.tools) == ("a is 1", ("request_tools", "files_read_file"))
    offered = [tool["function"]["name"] for tool in world.server.bodies[-1]["tools"]]
    assert offered == ["search_memory", "request_tools", "final_answer", "files_read_file"]


@pytest.mark.parametrize("approval", [ApprovalPolicy.NONE, ApprovalPolicy.EVERY])
async def test_named_tools_may_change_its_clone_where_nobody_approves_calls(world: World, approval: ApprovalPolicy):
    world.task = replace(world.task, approval=approval)
    write = call("files_write_file", path="n.txt", content="new")
    world.says(write, call("shell_run_command", command="touch m.txt"), Turn(content="Written."))
    assert (await world.answer(use_tools=True, tools=["files_write_file"])).text == "Written."
    assert world.left == ["app.py", *(["n.txt"] if approval is ApprovalPolicy.NONE else [])]
    outcomes = {one.entry.operation: one.entry.outcome for one in world.bodies(ToolFinished)}
    assert outcomes["run_command"] in (Outcome.REFUSED, Outcome.INVALID)


@pytest.mark.parametrize(
    ("turns", "config", "error"),
    [
        ((Failure(status=400, message="no", times=0), Turn()), {}, "no"),
        ((call("files_read_file", path="app.py"),), {"use_tools": True, "max_iterations": 2}, "stopped"),
        ((Turn(content="x"),), {"use_tools": True, "tools": ["no_such_tool"]}, "no tool 'no_such_tool'"),
    ],
)
async def test_what_comes_to_nothing_is_an_answer_with_an_error(world: World, turns, config, error: str):
    world.says(*turns)
    answer = await world.answer(**config)
    assert error in answer.error
    assert [one.error for one in world.bodies(RunFinished)] == [answer.error]


async def test_an_answer_goes_on_wherever_it_was_cut_off(world: World):
    first = call("files_write_file", path="n.txt", content="new")
    world.says(first, call("files_read_file", path="app.py"), call("final_answer", result="a is 1"))
    tools = {"use_tools": True, "tools": ["files_write_file", "files_list_files", "files_read_file"]}
    answer = await world.answer(**tools)
    whole = world.log
    for count in range(1, len(whole.events), 3):
        world.log = cut(whole, count)
        world.services = replace(world.services, log=world.log, blobs=world.log)
        lost, had, asked = fold_run(world.log.events, "node-ask-1").lost, len(world.bodies(ModelReplied)), world.asked
        again = await world.answer(generation=2, **tools)
        assert (again.text, again.tools) == (answer.text, answer.tools), count
        # What was answered stands, unless it was answered with files in mind that are lost.
        assert world.asked - asked == (3 - had or bool(lost)), count
        assert len(world.bodies(ModelReplied)) == had + world.asked - asked, count
        told = "".join(message.content for message in fold_run(world.log.events, "node-ask-1").messages)
        assert ("The machine that you worked on was lost" in told) is bool(lost), count
        assert world.sound("node-ask-1")
