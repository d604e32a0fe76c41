"""What models say reaches watchers while they say it, masked, and costs nothing where nobody listens."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.agents.run_deps import RunDeps
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.message import AssistantMessage, ModelCapabilities, ModelReply, ModelRequest
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.secrets import Secrets

SECRET = "hunter2hunter2"


@dataclass
class Speaking:
    """A model that says its text in pieces, if anybody wants pieces."""

    pieces: tuple[str, ...]
    streamed: list[bool] = field(default_factory=list[bool])

    async def probe(self) -> ModelCapabilities:
        return ModelCapabilities(model="speaking")

    async def ping(self) -> None:
        return None

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.streamed.append(request.on_delta is not None)
        for piece in self.pieces if request.on_delta is not None else ():
            request.on_delta(piece)
        return ModelReply(
            message=AssistantMessage(content="".join(self.pieces)), finish_reason="stop", usage=Usage(model_calls=1)
        )


@pytest.fixture
async def log(nats_server: EmbeddedNats) -> AsyncIterator[JetStream]:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=NatsCredentials(token=address.token)) as connected:
        await connected.ensure_streams()
        yield connected


async def test_a_watcher_hears_masked_text_and_an_unwatched_model_does_not_stream(log: JetStream) -> None:
    watched, other = (
        Task(task_id=uuid.uuid4().hex, kind=TaskKind.DELIBERATE, description="d", repo=RepoRef(location="/r"))
        for _ in range(2)
    )
    model = Speaking(("The key is hunter2", "hunter2, ", "said."))
    async with log.live_texts() as live, aclosing(log.watch_live("default", watched.execution_id)) as heard:

        def face(task: Task) -> ChatModel:
            trail = AuditTrail(execution_id=task.execution_id, agent_id="agent-dev-1")
            deps = RunDeps(models={"": model}, mask=Secrets((SECRET,)), live=live)
            return deps.model(task, Perspective(), trail)

        first = asyncio.create_task(anext(heard))
        async with asyncio.timeout(20):
            while not live.is_followed("default", watched.execution_id):
                await asyncio.sleep(0.02)
            reply = await face(watched).reply(ModelRequest(()))
            texts = [await first]
            while "said." not in texts[-1].text:
                texts.append(await anext(heard))
            await face(other).reply(ModelRequest(()))
    assert "".join(delta.text for delta in texts) == "The key is [masked], said."
    assert texts[0].begins and texts[0].agent_id == "agent-dev-1"
    assert reply.message.content == "The key is hunter2hunter2, said."  # masking it is the history's business
    assert model.streamed == [True, False]
