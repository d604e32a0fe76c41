"""`WS /api/ws/executions/{execution_id}`: an execution's messages as they come."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from enum import IntEnum

import grpc
import grpc.aio
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from services.gateway.access.limits import FRAMES
from services.gateway.event_stream import while_there
from services.gateway.streams.feeds import Feeds, Going, notice
from services.gateway.streams.following import TooSlow, check_names, flag, follow, number
from services.gateway.streams.ring import Batch
from services.gateway.upstream import Caller, caller_of
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.json_values import json_object

PATH = "/api/ws/executions/{execution_id}"
SEND_SECONDS = 10.0
"""How long a client may take to read what is sent to it at once."""
_TELL_SECONDS = 0.5
_HEARD_PAUSE = 0.05
"""Between what a client says; whoever says more waits for TCP."""
_REASON_BYTES = 120
_PING_CHARS = 200


class Close(IntEnum):
    """Why a WebSocket is closed."""

    ENDED = 1000
    GOING = 1001
    INTERNAL = 1011
    TRY_LATER = 1013
    BAD_REQUEST = 4400
    NO_TOKEN = 4401
    UNKNOWN = 4404
    TOO_SLOW = 4408
    TOO_MANY = 4429


_CLOSES = {
    grpc.StatusCode.NOT_FOUND: Close.UNKNOWN,
    grpc.StatusCode.INVALID_ARGUMENT: Close.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: Close.NO_TOKEN,
    grpc.StatusCode.PERMISSION_DENIED: Close.NO_TOKEN,
}


class WatchSocket:
    """Serves one WebSocket a call.

    Args:
        send_seconds: How long a client may take to read what is sent to it at once.
    """

    def __init__(self, feeds: Feeds, *, send_seconds: float = SEND_SECONDS) -> None:
        self._feeds = feeds
        self._send_seconds = send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        # To send to who has gone is an OSError, in ASGI.
        with suppress(OSError):
            await send({"type": "websocket.accept"})
            await while_there(self._tell(HTTPConnection(scope), send), _listen(receive, send))

    async def _tell(self, connection: HTTPConnection, send: Send) -> None:
        try:
            check_names(connection, ("from", "events", "text"))
            await self._messages(
                _Wire(send, connection.scope, flag(connection, "events")),
                connection.path_params["execution_id"],
                number(connection, "from", 0),
                caller_of(connection),
                text=flag(connection, "text"),
            )
            code, reason = Close.ENDED, "the execution has ended"
        except (FleetError, grpc.aio.AioRpcError) as error:
            code, reason = _close_of(error)
        except TooSlow as error:
            code, reason = Close.TOO_SLOW, str(error)
        await send({"type": "websocket.close", "code": int(code), "reason": _cut(reason)})

    async def _messages(
        self, wire: _Wire, execution_id: str, from_sequence: int, caller: Caller, *, text: bool
    ) -> None:
        feeds = self._feeds
        async with (
            feeds.watching(execution_id, caller, text=text) as feed,
            aclosing(follow(feed, from_sequence, feeds.past)) as batches,
        ):
            sent = max(from_sequence - 1, 0)
            try:
                async for batch in batches:
                    try:
                        async with asyncio.timeout(self._send_seconds):
                            await wire.send(batch)
                    except TimeoutError:
                        raise TooSlow(sent + 1) from None
                    sent = batch.sequence
            except TooSlow as slow:
                gap = notice(execution_id, "too_slow", "too slow", resume_from=slow.resume_from)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TELL_SECONDS):
                        await wire.send(Batch([gap]))
                raise


class _Wire:
    """Sends batches, as frames made once for all where the server takes those."""

    def __init__(self, send: Send, scope: Scope, events: bool) -> None:
        self._send = send
        self._events = events
        self._framed = FRAMES in scope.get("extensions", {})

    async def send(self, batch: Batch) -> None:
        if self._framed:
            await self._send({"type": "websocket.send", FRAMES: batch.frames(self._events)})
            return
        for message in batch.messages:
            await self._send({"type": "websocket.send", "text": message.body(self._events).decode()})


async def _listen(receive: Receive, send: Send) -> None:
    """Answer pings and pass over all else, until the client goes."""
    while (message := await receive())["type"] != "websocket.disconnect":
        text = message.get("text") or ""
        if len(text) <= _PING_CHARS and json_object(text).get("type") == "ping":
            await send({"type": "websocket.send", "text": '{"type":"pong"}'})
        await asyncio.sleep(_HEARD_PAUSE)


def _close_of(error: FleetError | grpc.aio.AioRpcError) -> tuple[Close, str]:
    if isinstance(error, grpc.aio.AioRpcError):
        code = _CLOSES.get(error.code(), Close.TRY_LATER)
        return code, error.details() or code.name
    match error:
        case Going():
            return Close.GOING, error.message
        case InvalidRequest():
            return Close.BAD_REQUEST, str(error)
        case ResourceExhausted():
            return Close.TOO_MANY, str(error)
        case Unavailable():
            return Close.TRY_LATER, str(error)
        case _:
            return Close.INTERNAL, error.message


def _cut(reason: str) -> str:
    """A reason as a close frame takes it: 123 bytes at most."""
    return reason.encode("utf-8", "replace")[:_REASON_BYTES].decode("utf-8", "ignore")
