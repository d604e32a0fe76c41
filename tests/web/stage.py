"""A fleet with something to look at: executions in every state. Everything but the model is real."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from services.orchestrator.main import RunningFleet
from swe_ai_fleet.testing.repositories import make_repository
from tests.scripts import GREETINGS, HELLO_FILES, PROPOSING, REVIEWED, RISKY
from tests.web_script import BUSY


@dataclass(kw_only=True)
class Stage:
    """Calls that fill a fleet. `executions` has the id of each sample by a word of its own."""

    running: RunningFleet
    channel: grpc.aio.Channel
    context: grpc.aio.Channel
    directory: Path
    executions: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def call(self) -> dict[str, Any]:
        return {"metadata": (("authorization", f"Bearer {self.running.token}"),), "timeout": 120}

    @property
    def url(self) -> str:
        """The page, with the token that lets one in."""
        return f"{self.running.http}/#token={self.running.token}"

    def repository(self, name: str, files: dict[str, str]) -> Path:
        """One of its own for each sample."""
        return make_repository(self.directory / f"{name}-{uuid.uuid4().hex[:6]}", files)

    async def submit(self, word: str, text: str, repository: Path, **fields: Any) -> str:
        """Hand in a deliberation; its execution id."""
        request = pb.DeliberateRequest(
            task_id=f"{word}-{uuid.uuid4().hex[:6]}",
            task_description=text,
            repo=pb.RepoRef(path=str(repository)),
            **({"num_agents": 1, "enable_peer_review": False} | fields),
        )
        stub: Any = pb_grpc.OrchestratorServiceStub(self.channel)
        answer = await stub.SubmitTask(pb.SubmitTaskRequest(deliberate=request), **self.call)
        self.executions[word] = answer.execution_id
        return answer.execution_id

    async def until(self, execution_id: str, *kinds: str) -> None:
        """Wait for an event of one of these kinds, or for the end."""
        stub: Any = pb_grpc.OrchestratorServiceStub(self.channel)
        async for event in stub.StreamExecution(pb.StreamExecutionRequest(execution_id=execution_id), **self.call):
            if event.type in kinds:
                return

    async def busy(self, agents: int = 3) -> str:
        """An execution that is at work for some seconds."""
        return await self.submit("busy", f"{BUSY} Add hello_world()", self.repository("busy", HELLO_FILES),
                                 num_agents=agents)  # fmt: skip

    async def asking(self) -> str:
        """An execution that waits for its plan to be approved."""
        found = await self.submit(
            "asking", f"{PROPOSING} Add hello_world()", self.repository("asking", HELLO_FILES),
            approval=pb.APPROVAL_POLICY_PLAN,
        )  # fmt: skip
        await self.until(found, "approval_awaited")
        return found

    async def reviewed(self) -> str:
        """An execution that has ended, with candidates that peers reviewed."""
        found = await self.submit(
            "reviewed", f"{REVIEWED} Add hello_world()", self.repository("reviewed", HELLO_FILES),
            num_agents=2, rounds=1, enable_peer_review=True,
        )  # fmt: skip
        await self.until(found, "execution_finished")
        return found

    async def delivered(self) -> str:
        """An execution that has ended: of three candidates one is refuted, and the best stands on a branch."""
        request = pb.OrchestrateRequest(
            task_id=f"delivered-{uuid.uuid4().hex[:6]}",
            task_description=f"{GREETINGS} Add hello_world()",
            repo=pb.RepoRef(path=str(self.repository("delivered", HELLO_FILES))),
            options=pb.OrchestratorOptions(num_agents=3, enable_peer_review=False, deliberation_rounds=0),
        )
        stub: Any = pb_grpc.OrchestratorServiceStub(self.channel)
        answer = await stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=request), **self.call)
        self.executions["delivered"] = answer.execution_id
        await self.until(answer.execution_id, "execution_finished")
        return answer.execution_id

    async def risky(self) -> str:
        """An execution that waits for a risky call to be approved."""
        found = await self.submit(
            "risky", f"{RISKY} Tidy up", self.repository("risky", HELLO_FILES), approval=pb.APPROVAL_POLICY_RISKY
        )
        await self.until(found, "approval_awaited")
        return found


@asynccontextmanager
async def stage_of(running: RunningFleet, directory: Path) -> AsyncGenerator[Stage]:
    """A stage on a fleet that runs; its repositories go below the directory."""
    async with (
        grpc.aio.insecure_channel(running.address) as channel,
        grpc.aio.insecure_channel(running.context) as context_channel,
    ):
        yield Stage(running=running, channel=channel, context=context_channel, directory=directory)
