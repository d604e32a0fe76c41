"""Calls to an orchestrator, and one in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from fleet.context.v1.context_pb2_grpc import ContextServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from tests.fleet_command import program

SECONDS = 150


def to_deliberate(text: str, repository: Path, **fields: Any) -> pb.DeliberateRequest:
    """A task for one agent, under a new id."""
    usual: dict[str, Any] = {"num_agents": 1, "enable_peer_review": False}
    return pb.DeliberateRequest(task_description=text, **_place(repository) | usual | fields)


def to_orchestrate(text: str, repository: Path, *, agents: int = 1, **fields: Any) -> pb.OrchestrateRequest:
    """A task for so many agents, under a new id; its winner is delivered on a branch."""
    options = pb.OrchestratorOptions(num_agents=agents)
    return pb.OrchestrateRequest(task_description=text, **_place(repository) | {"options": options} | fields)


def _place(repository: Path) -> dict[str, Any]:
    return {"task_id": f"task-{uuid.uuid4().hex[:8]}", "repo": pb.RepoRef(path=str(repository))}


def bodies(events: list[pb.ExecutionEvent], kind: str) -> list[dict[str, Any]]:
    """What the events of a kind say."""
    return [json.loads(event.payload_json) for event in events if event.type == kind]


class Client:
    """Calls to one orchestrator, and to the context service beside it; `call` is what each of them carries."""

    def __init__(self, channel: grpc.aio.Channel, token: str, known: grpc.aio.Channel | None = None) -> None:
        self.channel = channel
        self.stub: Any = pb_grpc.OrchestratorServiceStub(channel)
        self.context: Any = known and ContextServiceStub(known)
        self.call: dict[str, Any] = {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 2 * SECONDS}

    async def submit(self, task: pb.DeliberateRequest | pb.OrchestrateRequest) -> str:
        """The execution of a task that is accepted."""
        kind = "orchestrate" if isinstance(task, pb.OrchestrateRequest) else "deliberate"
        return (await self.stub.SubmitTask(pb.SubmitTaskRequest(**{kind: task}), **self.call)).execution_id

    async def execution(self, execution_id: str) -> pb.Execution:
        request = pb.GetExecutionRequest(execution_id=execution_id)
        return (await self.stub.GetExecution(request, **self.call)).execution

    async def until(self, execution_id: str, kind: str, text: str = "", *, count: int = 1) -> pb.Execution:
        """The execution once there were so many events of a kind with a text."""
        request, seen = pb.StreamExecutionRequest(execution_id=execution_id), 0
        async for event in self.stub.StreamExecution(request, **self.call):
            seen += event.type == kind and text in event.payload_json
            if seen == count:
                return await self.execution(execution_id)
        raise AssertionError(f"it ended with {seen} of {count} {kind}")

    async def events(self, execution_id: str) -> list[pb.ExecutionEvent]:
        """All of them, once the execution has ended."""
        request = pb.StreamExecutionRequest(execution_id=execution_id)
        return [event async for event in self.stub.StreamExecution(request, **self.call)]

    async def resolve(self, execution_id: str, decision: str, **fields: str) -> pb.ResolveApprovalResponse:
        request = pb.ResolveApprovalRequest(
            execution_id=execution_id, decision=f"APPROVAL_DECISION_{decision}", **fields
        )
        return await self.stub.ResolveApproval(request, **self.call)

    async def cancel(self, execution_id: str, reason: str = "") -> pb.CancelExecutionResponse:
        request = pb.CancelExecutionRequest(execution_id=execution_id, reason=reason)
        return await self.stub.CancelExecution(request, **self.call)


@asynccontextmanager
async def connected(card: Mapping[str, str]) -> AsyncIterator[Client]:
    """A client of the fleet that the card is of."""
    async with (
        grpc.aio.insecure_channel(card["address"]) as channel,
        grpc.aio.insecure_channel(card.get("context", "")) as known,
    ):
        yield Client(channel, card["token"], known)


@asynccontextmanager
async def serving(
    home: Path, model_url: str, **more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """The orchestrator in a process of its own, with more variables, and where it answers."""
    variables = {
        "FLEET_HOME": str(home),
        "FLEET_MODEL_URL": model_url,
        "FLEET_MODEL": "scripted",
        "FLEET_LISTEN": "127.0.0.1:0",
        # Whoever comes after one that was killed waits for so long.
        "FLEET_LEASE_SECONDS": "3",
    }
    command, log = (sys.executable, "-m", "services.orchestrator.main"), home / "fleet.log"
    async with program(*command, log=log, cwd=home, **{**variables, **more}) as process:
        async with asyncio.timeout(SECONDS):
            while not (home / "fleet.json").exists():
                assert process.returncode is None, log.read_text()[-3000:]
                await asyncio.sleep(0.05)
        yield process, json.loads((home / "fleet.json").read_text())
