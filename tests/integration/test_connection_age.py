"""Connections of gRPC clients are renewed while they are used, and nothing that goes on over one is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc.aio

from services.grpc_server import Service, serve_grpc

AGE_SECONDS = 0.3


class Echo:
    """Says where it was called from: at once, or twice with a wait between."""

    def __init__(self) -> None:
        self.went_on = asyncio.Event()

    async def ask(self, request: bytes, context: Any) -> bytes:
        return context.peer().encode()

    async def watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield context.peer().encode()
        await self.went_on.wait()
        yield context.peer().encode()


def add(echo: Echo, server: Any) -> None:
    handlers = {
        "Ask": grpc.unary_unary_rpc_method_handler(echo.ask, request_deserializer=bytes),
        "Watch": grpc.unary_stream_rpc_method_handler(echo.watch, request_deserializer=bytes),
    }
    server.add_generic_rpc_handlers((cast("Any", grpc).method_handlers_generic_handler("test.Echo", handlers),))


async def ready() -> bool:
    return True


async def test_a_connection_ends_for_new_calls_and_not_for_those_it_has() -> None:
    echo = Echo()
    service = Service(name="test.Echo", add=add, servicer=echo)
    async with (
        serve_grpc([service], "127.0.0.1:0", None, ready, grace_seconds=0.1, age_seconds=AGE_SECONDS) as address,
        grpc.aio.insecure_channel(address) as channel,
        asyncio.timeout(20),
    ):
        watching = aiter(cast("Any", channel.unary_stream("/test.Echo/Watch")(b"")))
        first = await anext(watching)
        ask: Any = channel.unary_unary("/test.Echo/Ask")
        while (later := await ask(b"")) == first:
            await asyncio.sleep(0.02)
        echo.went_on.set()
        assert await anext(watching) == first != later
