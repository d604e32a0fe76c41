"""Limits of clients: the size, duration and rate of requests, and slow readers.

A body is limited in size and duration, the head of a request in duration (uvicorn's HTTP/1.1). Requests are counted by
a token bucket for each client, in bounded memory. A connection whose client stops reading is closed.

`FRAMES` in a scope's extensions means that this WebSocket protocol (uvicorn's, extended) is in use: a `websocket.send`
may then have `fleet.frames`, complete frames as bytes, instead of a text. So data for five hundred clients is framed
only once.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from math import ceil
from typing import Any, cast

import h11
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from services.gateway.access.origins import Headers, values
from services.gateway.problems import Refusal
from services.grpc_server import MAX_REQUEST_BYTES
from swe_ai_fleet.domain.command import address_of

MAX_BYTES = MAX_REQUEST_BYTES
"""The limit of the services behind for one request."""
SECONDS = 30.0
"""The time limit of a body, and of each piece of an upload."""
UPLOAD_SECONDS = 3_600.0
_DRAIN_SECONDS = 3.0
HEAD_SECONDS = 15.0
MOST_CLIENTS = 10_000


class ClientGone(Exception):
    """The client has disconnected before its body was complete."""


async def read_body(receive: Receive, headers: Headers, *, limit: int = MAX_BYTES, seconds: float = SECONDS) -> bytes:
    """The whole body. Raises Refusal if it is too large or too slow, ClientGone."""
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
                    raise ClientGone
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise too_slow(f"the body did not arrive within {seconds:g} seconds") from None
    return bytes(body)


async def answer_early(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request without using its body, but keep reading it for a while.

    Closing a connection with unread data resets it, and the client may lose the response.
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
    """A `receive` that returns a body that was already read, and then further messages."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


class TimedReceive:
    """A `receive` for a body of any length that reports a disconnect if its pieces stop arriving."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._until = asyncio.get_running_loop().time() + UPLOAD_SECONDS
        self._whole = False
        self.stalled = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        seconds_left = min(SECONDS, self._until - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(seconds_left):
                message = await self._receive()
        except TimeoutError:
            self.stalled = True
            return {"type": "http.disconnect"}
        self._whole = not message.get("more_body", False)
        return message


def too_slow(detail: str) -> Refusal:
    """The refusal of a request whose body does not arrive in time."""
    return Refusal(408, detail, headers={"Connection": "close"})


def _too_large(limit: int) -> Refusal:
    return Refusal(
        413,
        f"the body has more than {limit} bytes",
        hint="upload large repositories with POST /api/repositories",
        headers={"Connection": "close"},
    )


class HeaderTimeoutProtocol(H11Protocol):
    """Closes a connection if its next request's headers are not complete within `HEAD_SECONDS`.

    uvicorn closes connections that are idle after a response, but not those that never send a request, or send headers
    or the rest of an unread body very slowly.
    """

    head_seconds = HEAD_SECONDS
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_clients_turn():
            self._stop_waiting()
        elif self._waiting is None and not self.transport.is_closing():
            self._wait()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_clients_turn():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self.head_seconds, self._give_up)

    def _give_up(self) -> None:
        self._waiting = None
        if self._is_clients_turn() and not self.transport.is_closing():
            self.transport.close()

    def _is_clients_turn(self) -> bool:
        """Whether the client has to send: a request, or the rest of one that was already answered."""
        client_state = self.conn.their_state
        return client_state is h11.IDLE or (
            client_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
        )

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitState:
    """The state of a client's rate limit after a request.

    Attributes:
        seconds: The time until the bucket is full, or after a refusal, until the next request is admitted.
    """

    admitted: bool
    remaining: int
    seconds: int


class Buckets:
    """A bucket for each client that holds `per_minute` requests and fills at that rate.

    At most `MOST_CLIENTS` buckets are stored: the least recently used are dropped, so those clients start anew.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._rate = per_minute / 60.0
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> RateLimitState:
        """Count a request of a client."""
        level = self._level(client)
        admitted = level >= 1.0
        self._levels[client] = (level - 1.0 if admitted else level, time.monotonic())
        self._levels.move_to_end(client)
        if len(self._levels) > MOST_CLIENTS:
            self._levels.popitem(last=False)
        if not admitted:
            return RateLimitState(admitted=False, remaining=0, seconds=ceil((1.0 - level) / self._rate))
        remaining = level - 1.0
        return RateLimitState(
            admitted=True, remaining=int(remaining), seconds=ceil((self.per_minute - remaining) / self._rate)
        )

    def look(self, client: str) -> RateLimitState:
        """The state of a client's limit, without counting a request."""
        level = self._level(client)
        seconds = ceil(max(0.0, 1.0 - level) / self._rate)
        return RateLimitState(admitted=level >= 1.0, remaining=int(level), seconds=seconds)

    def _level(self, client: str) -> float:
        level, at = self._levels.get(client, (float(self.per_minute), time.monotonic()))
        return min(float(self.per_minute), level + (time.monotonic() - at) * self._rate)


def peer(address: str) -> str:
    """The client of an address; for IPv6 its network of 64 bits, which belongs to one client."""
    if isinstance(parsed := address_of(address.partition("%")[0]), IPv6Address):
        return str(parsed.ipv4_mapped or IPv6Address(int(parsed) >> 64 << 64))
    return address


FRAMES = "fleet.frames"
GOING_AWAY = 1001
LINGER_SECONDS = 5.0
"""The time limit for sending the last data of a connection that the application has finished."""
_SHUTDOWN_SECONDS = 1.0
_TEXT = 0x81
_NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_SHORT, _MEDIUM = 126, 1 << 16
STALLED_SECONDS = 30.0


def text_frame(payload: bytes) -> bytes:
    """A text message as one server frame (RFC 6455, section 5.2): final, not masked, not compressed."""
    size = len(payload)
    if size < _SHORT:
        return bytes((_TEXT, size)) + payload
    if size < _MEDIUM:
        return struct.pack("!BBH", _TEXT, 126, size) + payload
    return struct.pack("!BBQ", _TEXT, 127, size) + payload


class FramedProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol with `fleet.frames`, code 1001 at shutdown, and no waiting for clients that do not read."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            # The head is complete, but uvicorn neither answers nor closes an invalid handshake.
            self.transport.write(b"".join(self.conn.data_to_send()) or _NO_HANDSHAKE)
            self.transport.close()

    async def run_asgi(self) -> None:
        cast("dict[str, Any]", self.scope)["extensions"][FRAMES] = {}
        await super().run_asgi()
        self._abort_after(LINGER_SECONDS)

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            # Do not wait for the client to read: the close frame is the last one anyway.
            self.writable.set()
        frames = message.get(FRAMES)
        if frames is None:
            await super().send(message)
            return
        await self.writable.wait()
        if not (self.disconnected or self.close_sent or self.transport.is_closing()):
            self.transport.write(frames)

    def shutdown(self) -> None:
        if self.handshake_complete and not self.close_sent and not self.transport.is_closing():
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY, "reason": None})
            self.conn.send_close(GOING_AWAY, "the server is shutting down")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
        else:
            super().shutdown()
        self._abort_after(_SHUTDOWN_SECONDS)

    def _abort_after(self, seconds: float) -> None:
        """Abort the connection after a while: a closing transport with unsent data would wait for ever."""
        if self.transport.get_write_buffer_size():
            self.loop.call_later(seconds, self.transport.abort)


class StalledProtocol(HeaderTimeoutProtocol):
    """Drops a connection whose client reads nothing for `stalled_seconds` while data is waiting.

    Otherwise an endless or large response would be kept for a client that never reads.
    """

    stalled_seconds = STALLED_SECONDS
    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stalled_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_stalled_timer()
        super().connection_lost(exc)

    def _stop_stalled_timer(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
