"""`python -m labs.recorded_store CHECKOUT FILE`: records the store of another version with work under way.

The fleet of a checkout (installed in its own `.venv`) accepts the tasks of `tests/recorded_store.py` and is killed
(kill -9) when one is half done and the others wait for people. Nothing in the file gets too old: what is kept has no
age, and people have for ever.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tarfile
from pathlib import Path

import grpc.aio
import psutil

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.planning.v1 import planning_pb2 as planning
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from fleet.workflow.v1 import workflow_pb2 as workflow
from fleet.workflow.v1.workflow_pb2_grpc import WorkflowServiceStub
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.fleet_client import Client
from tests.recorded_store import (
    ACCEPTED,
    FLOW,
    GOAL,
    HALF,
    PROPOSED,
    REPOSITORY,
    ROOT,
    SCRIPT,
    SESSION,
    TASKS,
    VARIABLES,
    WORKFLOW,
    room,
)
from tests.scripts import HELLO_FILES

_LEFT_OUT = {"fleet.json", "logs", "memory", "nats.log", "ray", "scratch", "slots", "tools", "workspaces"}


async def _submit(client: Client, channel: grpc.aio.Channel) -> dict[str, str]:
    """The executions of the tasks, by name."""
    repo = pb.RepoRef(path=str(REPOSITORY))
    accepted: dict[str, str] = {}
    for task_id, text in TASKS.items():
        if text == HALF:
            options = pb.OrchestratorOptions(num_agents=2)
            task = pb.OrchestrateRequest(task_id=task_id, task_description=text, repo=repo, options=options)
            request = pb.SubmitTaskRequest(orchestrate=task)
        else:
            policy = pb.APPROVAL_POLICY_PLAN if text == PROPOSED else pb.APPROVAL_POLICY_RISKY
            request = pb.SubmitTaskRequest(
                deliberate=pb.DeliberateRequest(
                    task_id=task_id, task_description=text, repo=repo, num_agents=1, approval=policy,
                    enable_peer_review=False,
                )
            )  # fmt: skip
        accepted[task_id] = (await client.stub.SubmitTask(request, **client.call)).execution_id
    flow = workflow.RunWorkflowRequest(task_id=FLOW, definition=WORKFLOW)
    accepted[FLOW] = (await WorkflowServiceStub(channel).RunWorkflow(flow, **client.call)).execution_id
    await PlanningServiceStub(channel).ExecutePlan(
        planning.ExecutePlanRequest(goal=GOAL, session_id=SESSION), **client.call
    )
    return accepted


async def _under_way(client: Client, accepted: dict[str, str]) -> None:
    """Wait until the half-run task's agents are in their last command, and the others wait for people."""
    request = pb.StreamExecutionRequest(execution_id=accepted["half-run"])
    sleeping = 0
    async for event in client.stub.StreamExecution(request, **client.call):
        sleeping += event.type == "tool_started" and "sleep 61" in event.payload_json
        if sleeping == 2:
            break
    for task_id in ("proposed", "risky", FLOW):
        while (await client.execution(accepted[task_id])).status != pb.DELIBERATION_STATUS_AWAITING_APPROVAL:
            await asyncio.sleep(0.1)


async def record(checkout: Path, file: Path) -> None:
    """Record the store of the fleet in a checkout into a file (tar, xz)."""
    with room():
        home = ROOT / "home"
        home.mkdir()
        make_repository(REPOSITORY, HELLO_FILES)
        async with ScriptedModelServer(SCRIPT) as model:
            process = await asyncio.create_subprocess_exec(
                *(str(checkout / ".venv/bin/python"), "-m", "services.orchestrator.main"),
                env={**os.environ, **VARIABLES, "FLEET_HOME": str(home), "FLEET_MODEL_URL": model.url},
                cwd=checkout,
            )
            async with asyncio.timeout(300):
                while not (home / "fleet.json").exists():
                    assert process.returncode is None
                    await asyncio.sleep(0.1)
                card = json.loads((home / "fleet.json").read_text())
                async with grpc.aio.insecure_channel(card["address"]) as channel:
                    client = Client(channel, card["token"])
                    accepted = await _submit(client, channel)
                    await _under_way(client, accepted)
            # What agents post without waiting is in the log by then.
            await asyncio.sleep(2)
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            await process.wait()
            _, alive = psutil.wait_procs(children, timeout=30)
            for child in alive:
                child.kill()
            psutil.wait_procs(alive, timeout=10)
        (home / ACCEPTED).write_text(json.dumps(accepted))
        with tarfile.open(file, "w:xz") as archive:
            for path in (home, REPOSITORY):
                archive.add(path, path.name, filter=lambda entry: None if Path(entry.name).name in _LEFT_OUT else entry)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m labs.recorded_store", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    asyncio.run(record(arguments.checkout.resolve(), arguments.file.resolve()))
