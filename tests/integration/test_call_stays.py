"""Streams over gRPC end soon after what let their caller in, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from services.access.store import AccessStore
from services.auth import Authenticator
from services.grpc_server import Service, serve_grpc
from tests.access_world import AccessWorld, token_entry

_NAME = "fleet.orchestrator.v1.OrchestratorService"
_PATH = f"/{_NAME}/StreamExecution"
_SECONDS = 10.0


@dataclass(kw_only=True)
class Room:
    """Streams what is put in, byte strings; nothing ends a stream."""

    items: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue[bytes])
    open: int = 0

    async def stream(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            while item := await self.items.get():
                yield item
        finally:
            self.open -= 1


@asynccontextmanager
async def serving(room: Room, store: Authenticator) -> AsyncGenerator[grpc.aio.Channel]:
    async def ready() -> bool:
        return True

    handlers = {"StreamExecution": grpc.unary_stream_rpc_method_handler(room.stream, bytes, bytes)}
    service = Service(
        name=_NAME,
        add=lambda given, server: server.add_generic_rpc_handlers((given,)),
        servicer=grpc.method_handlers_generic_handler(_NAME, handlers),
    )
    async with (
        serve_grpc([service], "127.0.0.1:0", store, ready, grace_seconds=0.1, check_seconds=0.05) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield channel


def opened(channel: grpc.aio.Channel, token: str) -> Any:
    return channel.unary_stream(_PATH)(b"", metadata=(("authorization", f"Bearer {token}"),), timeout=_SECONDS)


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    return error.value.code()


@pytest.fixture
def world(tmp_path: Path) -> AccessWorld:
    return AccessWorld(folder=tmp_path)


async def test_a_stream_ends_with_its_token_and_with_its_role(world: AccessWorld) -> None:
    now, room = 1_000_000_000.0, Room()
    soon = token_entry("soon", "a-token", tenant="acme", role="viewer", expires="2001-09-09T01:47:00Z")
    world.write(more=soon)
    store = await AccessStore.open(world.path, clock=lambda: now)
    async with serving(room, store) as channel:

        async def begun(token: str) -> Any:
            call = opened(channel, token)
            room.items.put_nowait(b"first")
            assert await call.read() == b"first"
            return call

        revoked = await begun(world.tokens["acme-viewer"])
        world.write(without="acme-viewer", more=soon)
        assert await refused(revoked) is grpc.StatusCode.UNAUTHENTICATED
        assert room.open == 0, "what it had is let go of"
        over = await begun("a-token")
        now += 20.0
        assert await refused(over) is grpc.StatusCode.UNAUTHENTICATED
        now -= 20.0
        moved = await begun("a-token")
        world.write(more=token_entry("soon", "a-token", tenant="umbrella", role="viewer"))
        assert await refused(moved) is grpc.StatusCode.UNAUTHENTICATED
