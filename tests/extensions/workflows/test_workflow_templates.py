"""The workflows that come with the fleet, end to end over gRPC on a real fleet."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from fleet.workflow.v1 import workflow_pb2 as pb
from fleet.workflow.v1 import workflow_pb2_grpc as pb_grpc
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
from tests.conftest import FleetUnderTest
from tests.fleet_client import Client
from tests.search_server import SearchServer
from tests.workflow_script import CART_FILES, FIX, RESEARCH, REVIEW


class Workflows(Client):
    """Both services of one fleet."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        super().__init__(channel, token)
        self.workflows = pb_grpc.WorkflowServiceStub(channel)

    async def begin(self, workflow: str, inputs: Mapping[str, object], repo: Path | None = None, **more: object) -> str:
        where = orchestrator.RepoRef(path=str(repo)) if repo is not None else None
        what = {"definition" if "\n" in workflow else "name": workflow}
        request = pb.RunWorkflowRequest(
            task_id=f"flow-{uuid.uuid4().hex[:8]}", inputs_json=json.dumps(inputs), repo=where, **what, **more
        )
        first = await self.workflows.RunWorkflow(request, **self.call)
        again = await self.workflows.RunWorkflow(request, **self.call)
        assert (again.execution_id, again.already_existed) == (first.execution_id, True)
        return first.execution_id

    async def ended(self, execution_id: str) -> pb.WorkflowRun:
        """The run at its end; what waits for a person is approved."""
        request = orchestrator.StreamExecutionRequest(execution_id=execution_id)
        async for event in self.stub.StreamExecution(request, **self.call):
            if event.type == "approval_awaited":
                await self.resolve(execution_id, "APPROVED", comment="go")
        return (await self.workflows.GetRun(pb.GetRunRequest(execution_id=execution_id), **self.call)).run


@pytest.fixture
async def client(fleet: FleetUnderTest) -> AsyncIterator[Workflows]:
    async with grpc.aio.insecure_channel(fleet.running.address) as channel:
        yield Workflows(channel, fleet.running.token)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository", CART_FILES)


def _statuses(run: pb.WorkflowRun) -> dict[str, int]:
    assert (run.status, run.error_message) == (orchestrator.DELIBERATION_STATUS_COMPLETED, "")
    return {one.node_id: one.status for one in run.nodes}


@pytest.mark.slow
async def test_an_issue_is_reproduced_fixed_verified_and_reviewed(client: Workflows, repository: Path) -> None:
    issue = f"{FIX} total() of an empty list raises IndexError"
    run = await client.ended(await client.begin("fix-issue", {"issue": issue}, repository))
    assert set(_statuses(run)) == {"reproduce", "fix", "verify", "review"}
    outputs = json.loads(run.outputs_json)
    assert outputs["commit"] == git(repository, "rev-parse", outputs["branch"])
    assert "prices[0]" not in git(repository, "show", f"{outputs['branch']}:cart.py")
    assert outputs["review"].startswith("approve")
    assert "passed" in outputs["tests"]["content"]
    assert outputs["verified"] == "completed"
    # What the reviewer read stood on the delivered branch.
    events = await client.events(run.execution_id)
    read = [e for e in events if e.type == "tool_finished" and e.agent_id == "node-review-1"]
    assert "return sum(prices)" in read[0].payload_json


@pytest.mark.slow  # quick: test_workflow_drives.py runs two templates
async def test_a_branch_is_reviewed_from_several_sides(client: Workflows, repository: Path) -> None:
    commit_files(repository, {"cart.py": "def total(prices):\n    return sum(prices)\n"}, message="Sum up")
    inputs = {"base": "HEAD~1", "sides": [f"{REVIEW} correctness", f"{REVIEW} tests"]}
    run = await client.ended(await client.begin("review-pull-request", inputs, repository))
    assert set(_statuses(run)) == {"changes", "history", "reviews", "reviews[0]", "reviews[1]", "verdict"}
    outputs = json.loads(run.outputs_json)
    assert (outputs["verdict"], len(outputs["reviews"])) == ("approve", 2)


async def test_a_report_is_researched_without_a_repository(client: Workflows, search_server: SearchServer) -> None:
    question = f"{RESEARCH} what is so?"
    run = await client.ended(await client.begin("research-report", {"question": question, "results": 5}))
    assert set(_statuses(run)) == {"search", "sources", "report"}
    assert question in search_server.asked
    outputs = json.loads(run.outputs_json)
    assert outputs["report"] == "It is so [1], and so [2]."
    assert [one["url"] for one in outputs["sources"]["sources"]] == ["https://one.example/a", "https://two.example/b"]
    # What the web said came through as data, quotes, code and all.
    assert outputs["sources"]["sources"][1]["content"] == "'''; import os; os.abort() #"


async def test_what_there_is_and_what_is_wrong(client: Workflows) -> None:
    listed = await client.workflows.ListWorkflows(pb.ListWorkflowsRequest(), **client.call)
    names = ["fix-issue", "research-report", "review-pull-request", "upgrade-dependency"]
    assert ([one.name for one in listed.workflows], list(listed.broken)) == (names, [])
    found = await client.workflows.GetWorkflow(pb.GetWorkflowRequest(name="fix-issue"), **client.call)
    assert found.mermaid.startswith("flowchart") and "name: fix-issue" in found.definition
    assert [one.id for one in found.graph.nodes] == ["reproduce", "fix", "verify", "review"]
    bad = "name: bad\nnodes:\n  - id: one\n    type: tool\n    tool: no_such_tool\n"
    told = await client.workflows.ValidateWorkflow(pb.ValidateWorkflowRequest(definition=bad), **client.call)
    assert [(one.line, one.node) for one in told.faults] == [(5, "one")]
    # Half a surrogate pair is JSON, but nothing that a log can keep.
    odd = bad.replace("no_such_tool", "git_log").replace("nodes:", "inputs: {said: string}\nnodes:")
    run = await client.ended(await client.begin(odd, {"said": "so\ud800"}))
    assert (json.loads(run.inputs_json), _statuses(run)) == ({"said": "so\ufffd"}, {"one": pb.NODE_STATUS_COMPLETED})
    for name, inputs, code in (
        (bad, {}, grpc.StatusCode.INVALID_ARGUMENT),
        ("nowhere", {}, grpc.StatusCode.NOT_FOUND),
        ("fix-issue", {"issue": "x"}, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.begin(name, inputs)
        assert caught.value.code() is code
