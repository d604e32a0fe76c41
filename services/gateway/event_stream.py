"""Answers that take their time: server-sent events as they go over the wire, clients that leave before the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.types import Receive

T = TypeVar("T")

MEDIA_TYPE = "text/event-stream"
HEADERS: Mapping[str, str] = {"cache-control": "no-store", "x-accel-buffering": "no"}
KEEPALIVE = b": still here\n\n"
KEEPALIVE_SECONDS = 15.0
"""After that long without an event a comment goes out, so that nobody on the way takes the connection for dead."""


def wants_events(request: Request) -> bool:
    """Whether a request's `Accept` names the media type."""
    return MEDIA_TYPE in request.headers.get("accept", "").lower()


def event(name: str, data: bytes, *, number: int = 0) -> bytes:
    """One event; `data` has no line ends, `number` 0 is none."""
    return (b"id: %d\n" % number if number else b"") + b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class Coming(Generic[T]):
    """The next item of a stream, waited for in pieces."""

    def __init__(self, stream: AsyncGenerator[T, None]) -> None:
        self._stream = stream
        self._next = asyncio.ensure_future(anext(stream, None))

    async def settled(self, seconds: float) -> bool:
        """Whether it is there within that time. Raises the stream's fault where that is there instead."""
        await asyncio.wait((self._next,), timeout=seconds)
        if not self._next.done():
            return False
        self._next.result()
        return True

    def take(self) -> T | None:
        """The one that is there; from then on the one after it is waited for. None: that was all."""
        item = self._next.result()
        if item is not None:
            self._next = asyncio.ensure_future(anext(self._stream, None))
        return item

    async def close(self) -> None:
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)
        await self._stream.aclose()


async def client_gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_there(work: Awaitable[T], leaving: Awaitable[None]) -> T | None:
    """The work's result; None where the client leaves before that, and then the work is cancelled."""
    working, going = asyncio.ensure_future(work), asyncio.ensure_future(leaving)
    try:
        await asyncio.wait((working, going), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        going.cancel()
        result, left = await asyncio.gather(working, going, return_exceptions=True)
    for outcome in (left, result):
        if isinstance(outcome, Exception):
            raise outcome
    return None if isinstance(result, BaseException) else result
