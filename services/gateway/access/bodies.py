"""Bodies of requests: bounded in size and in the time that they take."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from services.gateway.access.places import Headers, values
from services.gateway.problems import Refusal
from services.grpc_server import MAX_REQUEST_BYTES

MAX_BYTES = MAX_REQUEST_BYTES
"""What the services behind take in one request."""
SECONDS = 30.0
"""For a whole body, and for each piece of an upload."""
UPLOAD_SECONDS = 3_600.0
_DRAIN_SECONDS = 3.0


class Gone(Exception):
    """The client went away before its body had come."""


async def read_body(receive: Receive, headers: Headers, *, limit: int = MAX_BYTES, seconds: float = SECONDS) -> bytes:
    """The whole body. Raises Refusal where it is too large or too slow, Gone."""
    declared = values(headers, b"content-length")
    if declared and declared[0].isdigit() and int(declared[0][:18]) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise too_slow(f"the body did not come within {seconds:g} seconds") from None
    return bytes(body)


async def answer_early(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request whose body is not wanted, and read on for a while.

    A connection that is closed with something unread is reset, and the answer with it.
    """

    async def holding(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    await answer(scope, receive, holding)
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})


def read_again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands a body out that was read already, and then whatever else comes."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


class PatientReceive:
    """A `receive` for a body of any length whose pieces keep coming; where they do not, the client counts as gone.

    Args:
        receive: From the client.
        seconds: For each piece.
        total: For all of them.
    """

    def __init__(self, receive: Receive, *, seconds: float = SECONDS, total: float = UPLOAD_SECONDS) -> None:
        self._receive = receive
        self._seconds = seconds
        self._until = asyncio.get_running_loop().time() + total
        self._whole = False
        self.stalled = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        left = min(self._seconds, self._until - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(left):
                message = await self._receive()
        except TimeoutError:
            self.stalled = True
            return {"type": "http.disconnect"}
        self._whole = not message.get("more_body", False)
        return message


def too_slow(detail: str) -> Refusal:
    """What a client is told whose body does not come."""
    return Refusal(408, detail, headers={"Connection": "close"})


def _too_large(limit: int) -> Refusal:
    return Refusal(
        413,
        f"the body has more than {limit} bytes",
        hint="large repositories go through POST /api/repositories",
        headers={"Connection": "close"},
    )
