"""Workflows as a library call: real tools, real memory, a scripted model over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.workflow import AgentConfig, Edge, Node, NodeStatus, NodeType, Workflow, WorkflowInput
from swe_ai_fleet.extensions.workflows import (
    ApprovalDecision,
    ExecutionStatus,
    LLMAgent,
    NodeApproval,
    NodeDecision,
    WorkflowExecutor,
    read_workflow,
)
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools import FunctionTool, ToolRegistry
from tests.documented import blocks, run_python
from tests.environments import home_at

SECRET = "hunter2-hunter2"


def call(name: str, arguments: Mapping[str, Any]) -> Turn:
    return Turn(tool_calls=((name, arguments),))


def answer(text: str) -> Turn:
    return call("final_answer", {"result": text})


SCRIPT = Script(
    conversations=(
        Conversation(
            regex=r"15 (times|\*) 23",
            turns=(call("calculator", {"expression": "15 * 23 + 17"}), answer("15 * 23 + 17 = 362")),
        ),
        Conversation(
            match="squares",
            turns=(
                call("python_executor", {"code": "result = sum(n * n for n in range(1, 11))"}),
                answer('{"sum": 385}'),
            ),
        ),
        Conversation(
            match="Add these up", turns=(call("calculator", {"expression": "1 + 4 + 9"}), answer("The sum is 14."))
        ),
        Conversation(
            match="You make plans for another agent",
            turns=(Turn(content='{"plan": ["Look", "Change"], "reasoning": "In this order."}'),),
        ),
        Conversation(match="[secret]", turns=(Turn(content=f"It is {SECRET}."),)),
    ),
    default=Conversation(turns=(Turn(content="Hm."),)),
)


@pytest.fixture(scope="module")
async def server() -> AsyncGenerator[ScriptedModelServer]:
    async with ScriptedModelServer(SCRIPT) as running:
        yield running


@pytest.fixture
def chosen(server: ScriptedModelServer, tmp_path: Path) -> Settings:
    return Settings(
        home=home_at(tmp_path / "home"), model_url=server.url, model="scripted", model_api_key=SECRET, embeddings="none"
    )


def agent(name: str, query: str = "${inputs.query}", **config: Any) -> Node:
    return Node(id=name, type=NodeType.AGENT, query=query, agent_config=AgentConfig(**config))


def tool(name: str, of: str = "calculator", **arguments: Any) -> Node:
    return Node(id=name, type=NodeType.TOOL, tool=of, arguments=arguments)


def one(*nodes: Node, edges: tuple[Edge, ...] = (), inputs: str = "query", **options: Any) -> Workflow:
    declared = tuple(WorkflowInput(name=name, required=False) for name in inputs.split())
    return Workflow(name="flow", nodes=nodes, edges=edges, inputs=declared, **options)


class TestAgents:
    async def test_the_calculator(self, chosen: Settings) -> None:
        node = agent("sum", tools=["calculator"], use_tools=True)
        executor = WorkflowExecutor(one(node, outputs={"text": "${nodes.sum.output.answer}"}), settings=chosen)
        state = await executor.execute({"query": "What is 15 times 23, plus 17?"})
        assert (state.status, state.outputs) == (ExecutionStatus.COMPLETED, {"text": "15 * 23 + 17 = 362"})
        assert json.loads(state.nodes["sum"].output)["tools"] == ["calculator"]
        assert state.usage.model_calls == 2

    async def test_the_python_executor(self, chosen: Settings, server: ScriptedModelServer) -> None:
        node = agent("squares", tools=["python_executor"])
        found = await LLMAgent(node, use_tools=True, settings=chosen).execute({"query": "Sum the squares of 1..10"})
        assert (found["data"], found["tools"]) == ({"sum": 385}, ["python_executor"])
        # Tools are offered only where they are on.
        await LLMAgent(node, use_tools=False, settings=chosen).execute({"query": "Hm"})
        assert "python_executor" not in str(server.bodies[-1].get("tools"))

    async def test_a_planner_is_a_node(self, chosen: Settings) -> None:
        node = tool("plan", of="call_planner", goal="${inputs.query}")
        executor = WorkflowExecutor(one(node, outputs={"steps": "${nodes.plan.output.data.plan}"}), settings=chosen)
        state = await executor.execute({"query": "Greet everybody"})
        assert (state.status, state.outputs) == (ExecutionStatus.COMPLETED, {"steps": ["Look", "Change"]})

    async def test_secrets_are_hidden(self, chosen: Settings, tmp_path: Path) -> None:
        workflow = one(agent("a", "[secret] ${inputs.query}"))
        file = tmp_path / "run.jsonl"
        told: list[Any] = []
        executor = WorkflowExecutor(workflow, settings=chosen, state=file, on_update=told.append)
        state = await executor.execute({"query": f"mine is {SECRET}"})
        assert SECRET not in str(state.outputs)
        assert SECRET not in file.read_text()
        assert [each["type"] for each in told if SECRET in str(each)] == ["node_update"] * 2


ALL = """
name: everything
inputs: {numbers: array}
nodes:
  - id: squares
    type: map
    over: ${inputs.numbers}
    max_parallel: 2
    node: {type: tool, tool: calculator, arguments: {expression: "${item} * ${item}"}}
  - id: flaky
    type: tool
    tool: flaky
    arguments: {number: "${nodes.squares.output[1].data.result}"}
    retries: 2
    retry_seconds: 0.001
  - id: size
    type: branch
    cases:
      - {label: large, when: {ref: "${nodes.flaky.output.data.value}", op: gt, value: 5}}
      - label: small
  - {id: ask, type: approval, prompt: "Use ${nodes.flaky.output.data.value}?"}
  - {id: report, type: tool, tool: calculator, arguments: {expression: "${nodes.flaky.output.data.value} + 1"}}
  - {id: never, type: tool, tool: calculator, arguments: {expression: "0"}}
edges:
  - {source: squares, target: flaky}
  - {source: flaky, target: size}
  - {source: size, target: ask, label: large}
  - {source: size, target: never, label: small}
  - {source: ask, target: report}
outputs:
  total: ${nodes.report.output.data.result}
  skipped: ${nodes.never.output.data.result}
"""


class Flaky:
    """Fails so many times, then gives its number back."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.calls = 0

    async def flaky(self, number: int) -> int:
        """A number, sometimes."""
        self.calls += 1
        if self.calls <= self.times:
            raise RuntimeError("not now")
        return number


def registry(flaky: Flaky) -> ToolRegistry:
    return ToolRegistry([FunctionTool(flaky.flaky, name="flaky")], standard=ToolRegistry.get_all_tools().values())


class TestTogether:
    async def test_branch_map_approval_and_retry(self, chosen: Settings) -> None:
        flaky, asked = Flaky(2), list[NodeApproval]()

        async def approve(approval: NodeApproval) -> NodeDecision:
            asked.append(approval)
            return NodeDecision(decision=ApprovalDecision.APPROVED, text="fine", approver="ada")

        tools = registry(flaky)
        workflow = read_workflow(ALL, tools=tools.get_all_tools())
        executor = WorkflowExecutor(workflow, settings=chosen, registry=tools, approve=approve)
        running = asyncio.create_task(executor.execute({"numbers": [2, 3, 4]}))
        updates = [update async for update in executor.updates()]
        state = await running
        assert state.status is ExecutionStatus.COMPLETED
        assert state.outputs == {"total": 10, "skipped": None}
        assert asked[0].prompt == "Use 9?"
        assert (flaky.calls, state.nodes["flaky"].attempt, state.nodes["flaky"].failures) == (3, 3, 2)
        assert state.nodes["never"].status is NodeStatus.SKIPPED
        assert [u["sequence"] for u in updates] == [*range(1, len(updates) + 1)]
        assert [u["type"] for u in (updates[0], *updates[-2:])] == ["status", "node_update", "completion"]
        assert updates[-1].get("result", {})["outputs"] == {"total": 10, "skipped": None}
        assert len({u["execution_id"] for u in updates}) == 1
        failed = [u.get("node_state", {}) for u in updates if u.get("node_id") == "flaky"][1]
        assert (failed["status"], failed["inputs"]) == ("pending", {"number": 9})
        assert "not now" in failed["error"]


class TestState:
    async def test_a_file_of_something_else(self, chosen: Settings, tmp_path: Path) -> None:
        file = tmp_path / "run.jsonl"
        for text in ("nonsense\n", '{"version": 1}\n', "[]\n", '{"version":1,"execution_id":"x","run":"y"}\n'):
            file.write_text(text)
            with pytest.raises(PreconditionFailed, match=r"not a workflow state|another workflow"):
                await WorkflowExecutor(one(tool("t", expression="1")), settings=chosen, state=file).execute()
            assert file.read_text() == text
        link = tmp_path / "link.jsonl"
        link.symlink_to(file)
        with pytest.raises(OSError, match="symbolic"):
            await WorkflowExecutor(one(tool("t", expression="1")), settings=chosen, state=link).execute()


async def test_the_document(
    server: ScriptedModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = (Path(__file__).parents[3] / "docs/workflows.md").read_text()
    for name, value in {"MODEL_URL": server.url, "MODEL": "scripted", "HOME": "home", "EMBEDDINGS": "none"}.items():
        monkeypatch.setenv(f"FLEET_{name}", value)
    monkeypatch.chdir(tmp_path)
    files = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
    Path("squares.yaml").write_text(files[0])
    names: dict[str, Any] = {}
    for language, block in blocks("docs/workflows.md"):
        if language == "python":
            await run_python(block, names)
    printed = capsys.readouterr().out
    assert "completed The sum is 14." in printed
    assert "\n362\n" in printed
    assert "15 * 23 + 17 = 362 ['calculator']" in printed
