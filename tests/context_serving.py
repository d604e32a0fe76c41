"""The context service on a real server over a NATS of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import grpc.aio
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from fleet.context.v1 import context_pb2 as pb
from fleet.context.v1.context_pb2_grpc import ContextServiceStub
from services.context.main import RunningContext, open_context
from swe_ai_fleet.adapters.context_service import ContextServiceClient
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings

TOKEN = "a-token-for-tests"

SECRET = "sk-quite-a-secret-wxyz"


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running service, a stub that shows its token, and a client as the fleet has it."""

    running: RunningContext
    log: JetStream
    stub: ContextServiceStub
    client: ContextServiceClient

    async def call(self, method: str, request: Message, *, caller: str = "", token: str = TOKEN):
        named = (("fleet-caller", caller),) if caller else ()
        metadata = (("authorization", f"Bearer {token}"), *named)
        return await getattr(self.stub, method)(request, metadata=metadata, timeout=20)

    async def refused(self, method: str, request: Message, **how: str) -> tuple[str, str]:
        """The code that a call ends with, and the field that it names."""
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await self.call(method, request, **how)
        return refusal.value.code().name, field_of(refusal.value)

    async def story(self, **fields: object) -> str:
        """A new story of its own; its id."""
        story_id = f"S-{uuid4().hex[:8]}"
        await self.call("CreateStory", pb.CreateStoryRequest(story=pb.Story(story_id=story_id, title="T", **fields)))
        return story_id


def field_of(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                request = error_details_pb2.BadRequest()
                if detail.Unpack(request):
                    return request.field_violations[0].field
    return ""


def settings_for(home: Path, nats: EmbeddedNats) -> Settings:
    return Settings(
        home=home,
        nats_url=nats.address.url,
        nats_token=nats.address.token,
        context_listen="127.0.0.1:0",
        embeddings="none",
        model_api_key=SECRET,
    )


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Service]:
    async with connect_log(settings, name="context-test") as log:
        await log.ensure_streams()
        async with (
            open_context(settings, log, token=TOKEN) as running,
            grpc.aio.insecure_channel(running.address) as channel,
            ContextServiceClient(running.address, TOKEN) as client,
        ):
            yield Service(running=running, log=log, stub=ContextServiceStub(channel), client=client)
