"""Server-sent events in wire format, and waiting for work that a client may abandon by disconnecting."""

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
"""After this long without an event a comment is sent, so that proxies do not close the connection as idle."""


def wants_events(request: Request) -> bool:
    """Whether a request's `Accept` names the media type."""
    return MEDIA_TYPE in request.headers.get("accept", "").lower()


def event(name: str, data: bytes, *, number: int = 0) -> bytes:
    """One event; `data` has no line ends, `number` 0 means no id."""
    return (b"id: %d\n" % number if number else b"") + b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class NextItem(Generic[T]):
    """The next item of a stream, for which a caller can wait repeatedly."""

    def __init__(self, stream: AsyncGenerator[T, None]) -> None:
        self._stream = stream
        self._next = asyncio.ensure_future(anext(stream, None))

    async def is_ready(self, seconds: float) -> bool:
        """Wait at most so many seconds for the item or the end; whether it is ready. Raises the stream's exception."""
        await asyncio.wait((self._next,), timeout=seconds)
        if not self._next.done():
            return False
        self._next.result()
        return True

    def take(self) -> T | None:
        """The item that is ready, and begin to wait for the one after it; None at the stream's end."""
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


async def unless_gone(work: Awaitable[T], disconnect: Awaitable[None]) -> T | None:
    """The result of work; None if the client disconnects first, which cancels the work."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(disconnect)
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        waiting.cancel()
        result, gone = await asyncio.gather(working, waiting, return_exceptions=True)
    for outcome in (gone, result):
        if isinstance(outcome, Exception):
            raise outcome
    return None if isinstance(result, BaseException) else result
