"""Streams of messages as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import grpc.aio
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from services.gateway.problems import told_of
from services.gateway.rest.caller import Caller
from services.gateway.rest.operation import Operation
from services.gateway.rest.writing import written_aside
from services.gateway.upstream import Upstream, method

MEDIA_TYPE = "text/event-stream"
SILENCE_SECONDS = 15.0
"""After that long without a message a comment goes out, so that nobody on the way takes the connection for dead."""
REFUSAL_SECONDS = 5.0
"""How long the first message may take before the answer begins; what fails until then has an HTTP status."""


def takes_events(request: Request) -> bool:
    """Whether the client asks for events instead of the end alone."""
    return MEDIA_TYPE in request.headers.get("accept", "").lower()


async def event_answer(
    request: Request, operation: Operation, upstream: Upstream, message: Message, caller: Caller
) -> Response:
    """The stream of an operation's twin. Each event's data is a message in JSON, its name what the message carries.

    A fault after the beginning is an event `problem` with the problem document.

    Raises:
        grpc.aio.AioRpcError: The service refused before it began.
    """
    stream = upstream.stream(method(operation.events), message, token=caller.token, caller=caller.name)
    first = asyncio.ensure_future(anext(stream, None))
    try:
        await asyncio.wait((first,), timeout=REFUSAL_SECONDS)
    except asyncio.CancelledError:
        await _ended(first, stream)
        raise
    if first.done() and first.exception() is not None:
        first.result()
    body = _body(stream, first, request.url.path)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(body, headers=headers, media_type=MEDIA_TYPE)


async def _body(
    stream: AsyncGenerator[Message, None], first: asyncio.Future[Message | None], instance: str
) -> AsyncIterator[bytes]:
    coming = first
    async with aclosing(stream):
        try:
            while True:
                done, _ = await asyncio.wait((coming,), timeout=SILENCE_SECONDS)
                if not done:
                    yield b": still here\n\n"
                    continue
                try:
                    message = coming.result()
                except grpc.aio.AioRpcError as error:
                    document = json.dumps(told_of(error, instance=instance).document(), ensure_ascii=False)
                    yield b"event: problem\ndata: " + document.encode() + b"\n\n"
                    return
                if message is None:
                    return
                yield await _event(message)
                coming = asyncio.ensure_future(anext(stream, None))
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _event(message: Message) -> bytes:
    sequence = int(getattr(message, "sequence", 0))
    number = f"id: {sequence}\n" if sequence else ""
    # JSON has no line breaks of its own here, so one line holds it.
    return f"{number}event: {_name(message)}\ndata: ".encode() + await written_aside(message) + b"\n\n"


def _name(message: Message) -> str:
    kind = message.DESCRIPTOR
    if "final" in kind.fields_by_name:
        return "final" if message.HasField(cast("Any", "final")) else "update"
    return next((message.WhichOneof(one.name) or "update" for one in kind.oneofs), "update")


async def _ended(first: asyncio.Future[Message | None], stream: AsyncGenerator[Message, None]) -> None:
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await stream.aclose()
