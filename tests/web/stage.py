"""A fleet with something to look at: executions in every state. Everything but the model is real."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator.main import RunningFleet
from swe_ai_fleet.testing.repositories import make_repository
from tests.fleet_client import Client, to_deliberate, to_orchestrate
from tests.scripts import GREETINGS, HELLO_FILES, PROPOSING, REVIEWED, RISKY
from tests.web_script import BUSY


class Stage(Client):
    """Calls that fill a fleet. `executions` has the id of each sample by a word of its own."""

    def __init__(self, channel: grpc.aio.Channel, running: RunningFleet, directory: Path) -> None:
        super().__init__(channel, running.token or "")
        self.running, self.directory = running, directory
        self.executions: dict[str, str] = {}

    @property
    def url(self) -> str:
        """The page, with the token that lets one in."""
        return f"{self.running.http}/#token={self.running.token}"

    def repository(self, name: str, files: Mapping[str, str] = HELLO_FILES) -> Path:
        """One of its own for each sample."""
        return make_repository(self.directory / f"{name}-{uuid.uuid4().hex[:6]}", files)

    async def begin(self, word: str, text: str, **fields: Any) -> str:
        """Hand in a deliberation; its execution id."""
        task = to_deliberate(text, self.repository(word), **{"task_id": f"{word}-{uuid.uuid4().hex[:6]}"} | fields)
        self.executions[word] = await self.submit(task)
        return self.executions[word]

    async def busy(self, agents: int = 3) -> str:
        """An execution that is at work for some seconds."""
        return await self.begin("busy", f"{BUSY} Add hello_world()", num_agents=agents)

    async def asking(self) -> str:
        """An execution that waits for its plan to be approved."""
        asking = await self.begin("asking", f"{PROPOSING} Add hello_world()", approval=pb.APPROVAL_POLICY_PLAN)
        await self.until(asking, "approval_awaited")
        return asking

    async def reviewed(self) -> str:
        """An execution that has ended, with candidates that peers reviewed."""
        several = {"num_agents": 2, "rounds": 1, "enable_peer_review": True}
        reviewed = await self.begin("reviewed", f"{REVIEWED} Add hello_world()", **several)
        await self.events(reviewed)
        return reviewed

    async def delivered(self) -> str:
        """An execution that has ended: of three candidates one is refuted, and the best stands on a branch."""
        options = pb.OrchestratorOptions(num_agents=3, enable_peer_review=False, deliberation_rounds=0)
        text = f"{GREETINGS} Add hello_world()"
        delivered = await self.submit(to_orchestrate(text, self.repository("delivered"), options=options))
        await self.events(delivered)
        return delivered

    async def risky(self) -> str:
        """An execution that waits for a risky call to be approved."""
        risky = await self.begin("risky", f"{RISKY} Tidy up", approval=pb.APPROVAL_POLICY_RISKY)
        await self.until(risky, "approval_awaited")
        return risky


@asynccontextmanager
async def stage_of(running: RunningFleet, directory: Path) -> AsyncGenerator[Stage]:
    """A stage on a fleet that runs; its repositories go below the directory."""
    async with grpc.aio.insecure_channel(running.address) as channel:
        yield Stage(channel, running, directory)
