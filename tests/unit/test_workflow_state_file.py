"""State files: whatever of one is left, a run goes on from it to the same end."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.workflow import Edge, Node, NodeStatus, NodeType, Workflow, WorkflowInput
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.workflows import ExecutionState, NodeApproval, NodeDecision, WorkflowExecutor
from swe_ai_fleet.workflows.runner import NodeOutcome

INPUTS = {"items": ["ä", "\u2028\n", "secret"]}
FLOW = Workflow(
    name="flow",
    inputs=(WorkflowInput(name="items", type="array"),),
    nodes=(
        Node(id="each", type=NodeType.MAP, over="${inputs.items}", node=Node(
            id="one", type=NodeType.TOOL, tool="t", arguments={"x": "${item}"})),
        Node(id="all", type=NodeType.TOOL, tool="t", arguments={"x": "${nodes.each.output}"}),
    ),
    edges=(Edge(source="each", target="all"),),
)  # fmt: skip


class Echo:
    """Gives back what it is given."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def run(
        self, node: Node, inputs: Mapping[str, Any], *, node_id: str, attempt: int, earlier: str
    ) -> NodeOutcome:
        self.ran.append(node_id)
        return NodeOutcome(output=inputs["x"])

    async def decide(self, approval: NodeApproval) -> NodeDecision:
        raise NotImplementedError

    def execution_of(self, node: Node, *, node_id: str, attempt: int) -> str:
        return ""


async def go(path: Path) -> tuple[ExecutionState, list[str]]:
    runner = Echo()
    executor = WorkflowExecutor(FLOW, runner=runner, state=path, settings=Settings(home=path.parent))
    return await executor.execute(INPUTS), runner.ran


@pytest.fixture(scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("state") / "run.jsonl"
    state, ran = await go(path)
    assert state.outputs == {"all": INPUTS["items"]}
    assert len(ran) == 4
    return path.read_bytes()


@settings(max_examples=60)
@given(share=st.floats(0, 1))
async def test_cut_off_anywhere(whole: bytes, share: float) -> None:
    cut = round(share * len(whole))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.jsonl"
        path.write_bytes(whole[:cut])
        kept = [json.loads(line) for line in whole[: whole[:cut].rfind(b"\n") + 1].splitlines()[1:]]
        completed = {each["node_id"] for each in kept if each["status"] == "completed"}
        state, ran = await go(path)
        assert state.outputs == {"all": INPUTS["items"]}
        assert not completed & set(ran)
        assert {each.status for each in state.nodes.values()} == {NodeStatus.COMPLETED}
        head = path.read_bytes().splitlines()[0]
        again, ran = await go(path)
        assert (again.outputs, ran, path.read_bytes().splitlines()[0]) == (state.outputs, [], head)
        link = path.with_name("link.jsonl")
        link.symlink_to(path)
        with pytest.raises(OSError, match="symbolic"):
            await go(link)
