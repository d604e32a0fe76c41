"""What NATS and gRPC take on this machine: `python -m labs.bench.ceilings`; part of the capacity table.

One client process each, as bare as our own code is: publishes with and without waiting, an event as an agent stores it
(a writer each, expected sequences, one in flight), reads, unary calls and streams of a server that does nothing else.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import grpc.aio

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.domain.event import CancelRequested, Writer
from swe_ai_fleet.runtime.nats_server import EmbeddedNats

SECONDS = 3.0
WRITERS = 64
CALLERS = 32
_EVENT_BYTES = 900
"""About what a tool call's event has."""


async def ceiling_figures(*, seconds: float = SECONDS) -> dict[str, float]:
    """Messages and calls a second; NATS is embedded, with one copy of each stream."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="fleet-ceilings-") as name:
        async with EmbeddedNats(Path(name) / "nats") as server:
            login = NatsCredentials(token=server.address.token)
            async with JetStream.connect(server.address.url, credentials=login) as log:
                await log.ensure_streams()
                figures |= await _nats(log, seconds)
    figures |= await _grpc(seconds)
    return {name: round(value) for name, value in figures.items()}


async def _nats(log: JetStream, seconds: float) -> dict[str, float]:
    text = "x" * (_EVENT_BYTES - 300)

    async def writer(number: int) -> Callable[[], Awaitable[object]]:
        own = Writer(tenant="bench", execution_id=f"e{number}", task_id="t", agent_id="a", generation=1)
        journal = await opened.enter_async_context(log.journal(own, fresh=True))
        return lambda: journal.append(CancelRequested(reason=text))

    async with AsyncExitStack() as opened:
        alone = await _rate([await writer(0)], seconds)
        crowd = await _rate([await writer(number) for number in range(1, WRITERS + 1)], seconds)
    raw = await _rate([lambda: _publish(log) for _ in range(WRITERS)], seconds)
    read, began = 0, time.perf_counter()
    async with aclosing(log.everything()) as events:
        async for _ in events:
            read += 1
    return {
        "nats_events_alone_per_s": alone,
        "nats_events_per_s": crowd,
        "nats_publishes_per_s": raw,
        "nats_events_read_per_s": read / (time.perf_counter() - began),
    }


async def _publish(log: JetStream) -> None:
    await log.connection.publish("agent.dlq.bench", b"x" * _EVENT_BYTES, headers={}, timeout=10)


async def _grpc(seconds: float) -> dict[str, float]:
    async with _served() as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary("/bench.Bench/Call")
        calls = await _rate([lambda: call(b"x" * 200) for _ in range(CALLERS)], seconds)
        stream, count, began = channel.unary_stream("/bench.Bench/Stream")(b""), 0, time.perf_counter()
        async for _ in stream:
            count += 1
            if time.perf_counter() - began > seconds:
                break
        messages = count / (time.perf_counter() - began)
        stream.cancel()
    return {"grpc_calls_per_s": calls, "grpc_stream_messages_per_s": messages}


@asynccontextmanager
async def _served() -> AsyncGenerator[str]:
    async def answer(request: bytes, context: object) -> bytes:
        return request

    async def stream(request: bytes, context: object) -> AsyncGenerator[bytes]:
        while True:
            yield b"x" * _EVENT_BYTES

    handlers = {
        "Call": grpc.unary_unary_rpc_method_handler(answer),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bench", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def _rate(doings: list[Callable[[], Awaitable[object]]], seconds: float) -> float:
    """How often a second all of them together were done, each again and again."""
    done, began = 0, time.perf_counter()

    async def go_on(doing: Callable[[], Awaitable[object]]) -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await doing()
            done += 1

    await asyncio.gather(*(go_on(doing) for doing in doings))
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ceiling_figures()), indent=2))
