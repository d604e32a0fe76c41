"""kill -9 of the orchestrator's process in the middle of a workflow: the run goes on, and nothing is done twice."""

from __future__ import annotations

import json
from pathlib import Path

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as orchestrator_grpc
from fleet.workflow.v1 import workflow_pb2 as pb
from fleet.workflow.v1 import workflow_pb2_grpc as pb_grpc
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.e2e.test_restart import serving
from tests.workflow_script import CART_FILES, FIX, HELD

DEFINITION = f"""
name: survivor
nodes:
  - {{id: first, type: agent, query: "{HELD} first"}}
  - id: slow
    type: agent
    query: "{HELD} take your time"
    agent_config: {{use_tools: true, tools: [shell_run_command]}}
  - id: fix
    type: agent
    query: "Fix this issue with the smallest change that there is: {FIX}"
    agent_config: {{mode: orchestrate}}
  - {{id: tests, type: tool, tool: tests_run}}
edges:
  - {{source: first, target: slow}}
  - {{source: first, target: fix}}
  - {{source: slow, target: tests}}
  - {{source: fix, target: tests}}
outputs:
  slept: ${{nodes.slow.output.answer}}
  commit: ${{nodes.fix.output.commit_sha}}
"""


@pytest.mark.slow
async def test_a_workflow_survives_its_orchestrator(model_server: ScriptedModelServer, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", CART_FILES)
    home = tmp_path / "home"
    home.mkdir()
    request = pb.RunWorkflowRequest(
        task_id="survivor", definition=DEFINITION, repo=orchestrator.RepoRef(path=str(repository))
    )
    async with serving(home, model_server.url) as (process, card):
        async with grpc.aio.insecure_channel(card["address"]) as channel:
            call = {"metadata": (("authorization", f"Bearer {card['token']}"),), "timeout": 120}
            accepted = await pb_grpc.WorkflowServiceStub(channel).RunWorkflow(request, **call)
            executions = orchestrator_grpc.OrchestratorServiceStub(channel)
            watched = executions.StreamExecution(
                orchestrator.StreamExecutionRequest(execution_id=accepted.execution_id), **call
            )
            async for event in watched:
                if event.type == "tool_started" and event.agent_id == "node-slow-1":
                    break
            process.kill()
        await process.wait()
    (home / "fleet.json").unlink()

    async with serving(home, model_server.url) as (_, card), grpc.aio.insecure_channel(card["address"]) as channel:
        call = {"metadata": (("authorization", f"Bearer {card['token']}"),), "timeout": 120}
        executions = orchestrator_grpc.OrchestratorServiceStub(channel)
        watched = executions.StreamExecution(
            orchestrator.StreamExecutionRequest(execution_id=accepted.execution_id), **call
        )
        events = [event async for event in watched]
        workflows = pb_grpc.WorkflowServiceStub(channel)
        run = (await workflows.GetRun(pb.GetRunRequest(execution_id=accepted.execution_id), **call)).run
    assert (run.status, run.error_message) == (orchestrator.DELIBERATION_STATUS_COMPLETED, "")
    outputs = json.loads(run.outputs_json)
    assert outputs["slept"] == "Slept well."
    assert git(repository, "branch", "--list", "fleet/*").split() == ["fleet/survivor.fix-1"]
    assert git(repository, "rev-parse", "fleet/survivor.fix-1") == outputs["commit"]
    claims = [json.loads(e.payload_json)["generation"] for e in events if e.type == "execution_claimed"]
    assert claims == [1, 2]
    completed = [
        json.loads(e.payload_json)["node_id"]
        for e in events
        if e.type == "node_updated" and json.loads(e.payload_json)["status"] == "completed"
    ]
    assert sorted(completed) == ["first", "fix", "slow", "tests"]
    # The first one was asked once, and the slow one went on in the run that it had.
    assert {e.agent_id for e in events if e.type == "run_claimed"} == {
        f"node-{name}-1" for name in ("first", "slow", "tests")
    }
    assert sum(e.type == "run_started" and e.agent_id == "node-first-1" for e in events) == 1
    slow = [e for e in events if e.agent_id == "node-slow-1"]
    assert [json.loads(e.payload_json)["resumes"] for e in slow if e.type == "run_claimed"] == [False, True]
    assert sum(e.type == "run_started" for e in slow) == 1
