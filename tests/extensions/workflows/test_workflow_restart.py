"""kill -9 of the orchestrator's process in the middle of a workflow: the run goes on, and nothing is done twice."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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


@asynccontextmanager
async def connected(card: dict[str, str]) -> AsyncGenerator[tuple[Any, Any, dict[str, Any]]]:
    """Both services of a fleet, and what every call takes."""
    async with grpc.aio.insecure_channel(card["address"]) as channel:
        call = {"metadata": (("authorization", f"Bearer {card['token']}"),), "timeout": 120}
        yield pb_grpc.WorkflowServiceStub(channel), orchestrator_grpc.OrchestratorServiceStub(channel), call


@pytest.mark.slow
async def test_a_workflow_survives_its_orchestrator(model_server: ScriptedModelServer, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", CART_FILES)
    home = tmp_path / "home"
    home.mkdir()
    request = pb.RunWorkflowRequest(
        task_id="survivor", definition=DEFINITION, repo=orchestrator.RepoRef(path=str(repository))
    )
    async with serving(home, model_server.url) as (process, card), connected(card) as (workflows, executions, call):
        accepted = await workflows.RunWorkflow(request, **call)
        watch = orchestrator.StreamExecutionRequest(execution_id=accepted.execution_id)
        async for event in executions.StreamExecution(watch, **call):
            if event.type == "tool_started" and event.agent_id == "node-slow-1":
                break
        process.kill()
        await process.wait()
    (home / "fleet.json").unlink()

    async with serving(home, model_server.url) as (_, card), connected(card) as (workflows, executions, call):
        events = [event async for event in executions.StreamExecution(watch, **call)]
        run = (await workflows.GetRun(pb.GetRunRequest(execution_id=accepted.execution_id), **call)).run
    assert (run.status, run.error_message) == (orchestrator.DELIBERATION_STATUS_COMPLETED, "")
    outputs = json.loads(run.outputs_json)
    assert outputs["slept"] == "Slept well."
    assert git(repository, "branch", "--list", "fleet/*").split() == ["fleet/survivor--fix-1"]
    assert git(repository, "rev-parse", "fleet/survivor--fix-1") == outputs["commit"]
    told = [(e.type, e.agent_id, json.loads(e.payload_json)) for e in events]
    assert [payload["generation"] for kind, _, payload in told if kind == "execution_claimed"] == [1, 2]
    updates = [payload for kind, _, payload in told if kind == "node_updated"]
    completed = [one["node_id"] for one in updates if one["status"] == "completed"]
    assert sorted(completed) == ["first", "fix", "slow", "tests"]
    # The first one was asked once, and the slow one went on in the run that it had.
    claimed = [(name, payload["resumes"]) for kind, name, payload in told if kind == "run_claimed"]
    assert {name for name, _ in claimed} == {"node-first-1", "node-slow-1", "node-tests-1"}
    assert [resumes for name, resumes in claimed if name == "node-slow-1"] == [False, True]
    started = [name for kind, name, _ in told if kind == "run_started"]
    assert [started.count(name) for name in ("node-first-1", "node-slow-1")] == [1, 1]
