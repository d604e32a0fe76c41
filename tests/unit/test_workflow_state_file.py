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

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.workflow import Edge, Node, NodeStatus, NodeType, Workflow, WorkflowInput
from swe_ai_fleet.workflows.engine import WorkflowRun
from swe_ai_fleet.workflows.runner import NodeApproval, NodeDecision, NodeOutcome
from swe_ai_fleet.workflows.state import ExecutionState
from swe_ai_fleet.workflows.state_file import StateFile

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


def hide(text: str) -> str:
    return text.replace("secret", "***")


async def go(path: Path, workflow: Workflow = FLOW) -> tuple[ExecutionState, list[str], str]:
    runner = Echo()
    async with StateFile.open(path, workflow, INPUTS, mask=hide) as file:
        run = WorkflowRun(workflow, INPUTS, runner=runner, journal=file.append, known=file.known)
        return await run.run(), runner.ran, file.execution_id


@pytest.fixture(scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("state") / "run.jsonl"
    state, ran, _ = await go(path)
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
        state, ran, execution_id = await go(path)
        assert state.outputs == {"all": INPUTS["items"]}
        assert not completed & set(ran)
        assert {each.status for each in state.nodes.values()} == {NodeStatus.COMPLETED}
        again, ran, same = await go(path)
        assert (again.outputs, ran, same) == (state.outputs, [], execution_id)


async def test_what_nodes_are_given_is_masked(whole: bytes) -> None:
    lines = [json.loads(line) for line in whole.splitlines()[1:]]
    assert json.loads(next(each["inputs"] for each in lines if each["node_id"] == "each[2]")) == {"x": "***"}
    assert b"ecret" not in whole.splitlines()[0]


async def test_another_workflow(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(whole)
    other = Workflow(name="other", nodes=FLOW.nodes, edges=FLOW.edges, inputs=FLOW.inputs)
    with pytest.raises(PreconditionFailed, match="another workflow or with other inputs"):
        await go(path, other)
    assert path.read_bytes() == whole


async def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "run.jsonl").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        await go(tmp_path / "run.jsonl")
    assert (tmp_path / "target").read_text() == "mine"
