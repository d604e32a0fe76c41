"""Streams of messages as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import grpc.aio
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from services.gateway.caller import Caller
from services.gateway.event_stream import HEADERS, KEEPALIVE, KEEPALIVE_SECONDS, MEDIA_TYPE, event, wants_events
from services.gateway.problems import told_of
from services.gateway.rest.operation import Operation
from services.gateway.rest.writing import written_aside
from services.gateway.upstream import Upstream, method

REFUSAL_SECONDS = 5.0
"""How long the first message may take before the answer begins; what fails until then has an HTTP status."""


def takes_events(request: Request) -> bool:
    """Whether the client asks for events instead of the end alone."""
    return wants_events(request.headers.get("accept", ""))


async def event_answer(
    request: Request, operation: Operation, upstream: Upstream, message: Message, caller: Caller
) -> Response:
    """The stream of an operation's twin. Each event's data is a message in JSON, its name what the message carries.

    A fault after the beginning is an event `problem` with the problem document.

    Raises:
        grpc.aio.AioRpcError: The service refused before it began.
    """
    coming = _Coming(upstream.stream(method(operation.events), message, token=caller.token, caller=caller.name))
    try:
        await coming.settled(REFUSAL_SECONDS)
    except BaseException:
        await coming.close()
        raise
    return _EventAnswer(coming, request.url.path)


class _Coming:
    """The next message of a stream, waited for in pieces."""

    def __init__(self, stream: AsyncGenerator[Message, None]) -> None:
        self._stream = stream
        self._next = asyncio.ensure_future(anext(stream, None))

    async def settled(self, seconds: float) -> bool:
        """Whether it is there within that time. Raises grpc.aio.AioRpcError where a fault is there instead."""
        await asyncio.wait((self._next,), timeout=seconds)
        if not self._next.done():
            return False
        self._next.result()
        return True

    def take(self) -> Message | None:
        """The one that is there; from then on the one after it is waited for. None: that was all."""
        message = self._next.result()
        if message is not None:
            self._next = asyncio.ensure_future(anext(self._stream, None))
        return message

    async def close(self) -> None:
        """End the call."""
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)
        await self._stream.aclose()


class _EventAnswer(StreamingResponse):
    def __init__(self, coming: _Coming, instance: str) -> None:
        super().__init__(_body(coming, instance), headers=HEADERS, media_type=MEDIA_TYPE)
        self._coming = coming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Here and not where the body is made: a client that leaves has that cancelled over and over.
            await self._coming.close()


async def _body(coming: _Coming, instance: str) -> AsyncIterator[bytes]:
    try:
        while True:
            if not await coming.settled(KEEPALIVE_SECONDS):
                yield KEEPALIVE
            elif (message := coming.take()) is None:
                return
            else:
                yield await _event(message)
    except grpc.aio.AioRpcError as error:
        document = json.dumps(told_of(error, instance=instance).document(), ensure_ascii=False)
        yield event("problem", document.encode())


async def _event(message: Message) -> bytes:
    return event(_name(message), await written_aside(message), number=int(getattr(message, "sequence", 0)))


def _name(message: Message) -> str:
    kind = message.DESCRIPTOR
    if "final" in kind.fields_by_name:
        return "final" if message.HasField(cast("Any", "final")) else "update"
    return next((message.WhichOneof(one.name) or "update" for one in kind.oneofs), "update")
