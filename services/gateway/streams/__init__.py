"""An execution's events over HTTP: by WebSocket, as server-sent events, in pages, and its audit chains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress
from enum import IntEnum
from operator import attrgetter
from typing import cast

import grpc
import grpc.aio
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway import event_stream
from services.gateway.access.limits import FRAMES
from services.gateway.event_stream import NextItem, unless_gone
from services.gateway.streams.feeds import QUIET_SECONDS, STREAM_EXECUTION, Feed, Feeds, ShuttingDown, notice
from services.gateway.streams.following import TooSlow, check_names, flag, follow, number, number_of
from services.gateway.streams.messages import StreamMessage, json_bytes
from services.gateway.streams.ring import Batch
from services.gateway.upstream import Caller, Upstream, caller_of, method
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.audit_chains import ChainedEntry
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.json_values import json_object
from swe_ai_fleet.runtime.audit_keys import PublicKeys
from swe_ai_fleet.watching.events import Chains, report

_RETRY = b"retry: 2000\n\n"
_END = b"event: end\ndata: {}\n\n"
_BEGIN_SECONDS = 5.0
EVENTS_PATH = "/api/executions/{execution_id}/events"
DEFAULT_LIMIT, MAX_LIMIT = 200, 1_000
PAGE_BYTES = 4 * 1024 * 1024


class EventStream(Response):
    """Server-sent events until the execution ends."""

    def __init__(
        self, feeds: Feeds, execution_id: str, first: int, caller: Caller, *, text: bool, events: bool
    ) -> None:
        super().__init__(media_type=event_stream.MEDIA_TYPE, headers=event_stream.HEADERS)
        del self.headers["content-length"]
        self._feeds = feeds
        self._execution_id = execution_id
        self._first = first
        self._caller = caller
        self._text = text
        self._events = events
        self._stack = AsyncExitStack()
        self._feed: Feed | None = None

    async def has_events(self) -> bool:
        """Whether there are events to send, or may be some later. Raises the error that keeps them from being read."""
        watching = self._feeds.watching(self._execution_id, self._caller, text=self._text)
        feed = self._feed = await self._stack.enter_async_context(watching)
        try:
            async with asyncio.timeout(_BEGIN_SECONDS):
                while not (feed.over or feed.ring.sequence >= max(self._first, 1) or feed.caught_up):
                    await feed.changed(QUIET_SECONDS)
        except TimeoutError:
            return True
        except asyncio.CancelledError:
            await self._stack.aclose()
            raise
        empty = feed.ended and feed.ring.sequence < self._first
        if feed.fault is not None or empty:
            await self._stack.aclose()
        if feed.fault is not None:
            raise feed.fault
        return not empty

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await event_stream.unless_gone(self._send(send), event_stream.client_gone(receive))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks():
                # The server drops clients that do not read; see StalledProtocol.
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": _END, "more_body": False})
        except TooSlow as slow:
            gap = notice(self._execution_id, "too_slow", "too slow", resume_from=slow.resume_from)
            await send({"type": "http.response.body", "body": _event(gap, False), "more_body": False})
        except (FleetError, grpc.aio.AioRpcError):
            # The status has been sent already. The stream ends without an `end` event, so that clients reconnect.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        yield _RETRY
        assert self._feed is not None
        item = NextItem(follow(self._feed, self._first, self._feeds.log_readers))
        try:
            while True:
                if not await item.is_ready(event_stream.KEEPALIVE_SECONDS):
                    yield event_stream.KEEPALIVE
                elif (batch := item.take()) is None:
                    return
                else:
                    yield b"".join(_event(message, self._events) for message in batch.messages)
        finally:
            await item.close()


def _event(message: StreamMessage, events: bool) -> bytes:
    """A message as an event. Line breaks in JSON can only stand between values, so that they may become spaces."""
    data = message.body(events).replace(b"\r", b" ").replace(b"\n", b" ")
    return event_stream.event(message.kind, data, number=message.sequence)


class EventsPage:
    """Answers with a page of JSON, or with server-sent events if the client accepts those."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raises InvalidRequest, grpc.aio.AioRpcError."""
        return await (self._stream(request) if event_stream.wants_events(request) else self._page(request))

    async def _stream(self, request: Request) -> Response:
        check_names(request, ("from", "events", "text"))
        seen = request.headers.get("last-event-id")
        first = number(request, "from", 0) if seen is None else number_of(seen, "Last-Event-ID") + 1
        execution_id, caller, text = request.path_params["execution_id"], caller_of(request), flag(request, "text")
        events = flag(request, "events")
        stream = EventStream(self._feeds, execution_id, first, caller, text=text, events=events)
        # Errors get a status of their own, so nothing is sent before the first events are known.
        return stream if await stream.has_events() else Response(status_code=204)

    async def _page(self, request: Request) -> Response:
        check_names(request, ("from", "events", "limit"))
        first, limit = number(request, "from", 0), number(request, "limit", DEFAULT_LIMIT, least=1, most=MAX_LIMIT)
        events, caller = flag(request, "events", default=True), caller_of(request)
        execution_id = request.path_params["execution_id"]
        messages, size, full, ended = list[StreamMessage](), 0, False, False
        async with (
            self._feeds.watching(execution_id, caller, text=False) as feed,
            aclosing(follow(feed, first, self._feeds.log_readers, wait=False)) as batches,
        ):
            try:
                async for batch in batches:
                    for message in filter(attrgetter("sequence"), batch.messages):
                        size += message.size
                        full = full or (bool(messages) and (len(messages) >= limit or size > PAGE_BYTES))
                        if not full:
                            messages.append(message)
                    if full:
                        break
            except TooSlow:
                raise Unavailable("the events came faster than they could be read") from None
            ended = feed.ended and not full
        next_from = messages[-1].sequence + 1 if messages else first
        bodies = b",".join(message.body(events) for message in messages)
        page = b'{"events":[%b],"next_from":%d,"ended":%b}' % (bodies, next_from, b"true" if ended else b"false")
        return Response(page, media_type="application/json", headers={"cache-control": "no-store"})


AUDIT_PATH = "/api/executions/{execution_id}/audit"
DEFAULT_ENTRIES, MAX_ENTRIES = 100, 500
_SECONDS = 120.0
_GET_EXECUTION = method("fleet.orchestrator.v1.OrchestratorService.GetExecution")


class Audit:
    """Answers with the verdict on each audit chain, and with a page of one agent's entries if an agent is named."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raises InvalidRequest, grpc.aio.AioRpcError."""
        check_names(request, ("agent_id", "run", "from", "limit"))
        execution_id, caller = request.path_params["execution_id"], caller_of(request)
        agent_id, run = request.query_params.get("agent_id", ""), number(request, "run", 0)
        first = number(request, "from", 1)

        def is_shown(chained: ChainedEntry) -> bool:
            of_agent = bool(agent_id) and chained.agent_id == agent_id and run in (0, chained.run)
            return of_agent and chained.entry.seq >= first

        limit = number(request, "limit", DEFAULT_ENTRIES, least=1, most=MAX_ENTRIES)
        message = pb.GetExecutionRequest(execution_id=execution_id)
        answer = await self._upstream.call(_GET_EXECUTION, message, caller)
        reply = cast("pb.GetExecutionResponse", answer)
        last, keys = reply.execution.last_sequence, PublicKeys.of(key.public_key for key in reply.audit_keys)
        chains, page, more = Chains(keys if keys.keys else None), list[ChainedEntry](), False
        whole_log = pb.StreamExecutionRequest(execution_id=execution_id)
        stream = self._upstream.stream(STREAM_EXECUTION, whole_log, caller, seconds=_SECONDS)
        async with aclosing(stream) as events:
            async for message in events:
                event = cast("pb.ExecutionEvent", message)
                chained = chains.add(event)
                if chained is not None and is_shown(chained):
                    more = more or len(page) >= limit
                    if not more:
                        page.append(chained)
                if event.sequence >= last:
                    break
        document = {
            "execution_id": execution_id,
            "last_sequence": last,
            **report(chains.verdicts()),
            "entries": [{"run": chained.run, **to_plain(chained.entry)} for chained in page],
            "next_from": page[-1].entry.seq + 1 if more else None,
        }
        return Response(json_bytes(document), media_type="application/json", headers={"cache-control": "no-store"})


PATH = "/api/ws/executions/{execution_id}"
SEND_SECONDS = 10.0
"""How long a client may take to read one batch."""
_NOTICE_SECONDS = 0.5
_RECEIVE_PAUSE = 0.05
"""Between two messages of a client; a client that sends faster is slowed down by TCP."""
_REASON_BYTES = 120
_PING_CHARS = 200


class Close(IntEnum):
    """Why a WebSocket is closed."""

    ENDED = 1000
    SHUTTING_DOWN = 1001
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
        send_seconds: How long a client may take to read one batch.
    """

    def __init__(self, feeds: Feeds, *, send_seconds: float = SEND_SECONDS) -> None:
        self._feeds = feeds
        self._send_seconds = send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        # In ASGI, sending to a client that has disconnected raises OSError.
        with suppress(OSError):
            await send({"type": "websocket.accept"})
            await unless_gone(self._serve(HTTPConnection(scope), send), _answer_pings(receive, send))

    async def _serve(self, connection: HTTPConnection, send: Send) -> None:
        try:
            check_names(connection, ("from", "events", "text"))
            await self._messages(
                _BatchSender(send, connection.scope, flag(connection, "events")),
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
        await send({"type": "websocket.close", "code": int(code), "reason": _shortened(reason)})

    async def _messages(
        self, sender: _BatchSender, execution_id: str, from_sequence: int, caller: Caller, *, text: bool
    ) -> None:
        feeds = self._feeds
        async with (
            feeds.watching(execution_id, caller, text=text) as feed,
            aclosing(follow(feed, from_sequence, feeds.log_readers)) as batches,
        ):
            sent = max(from_sequence - 1, 0)
            try:
                async for batch in batches:
                    try:
                        async with asyncio.timeout(self._send_seconds):
                            await sender.send(batch)
                    except TimeoutError:
                        raise TooSlow(sent + 1) from None
                    sent = batch.sequence
            except TooSlow as slow:
                gap = notice(execution_id, "too_slow", "too slow", resume_from=slow.resume_from)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_NOTICE_SECONDS):
                        await sender.send(Batch([gap]))
                raise


class _BatchSender:
    """Sends batches; if the server accepts finished frames, those are made once for all watchers."""

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


async def _answer_pings(receive: Receive, send: Send) -> None:
    """Answer pings and ignore everything else, until the client disconnects."""
    while (message := await receive())["type"] != "websocket.disconnect":
        text = message.get("text") or ""
        if len(text) <= _PING_CHARS and json_object(text).get("type") == "ping":
            await send({"type": "websocket.send", "text": '{"type":"pong"}'})
        await asyncio.sleep(_RECEIVE_PAUSE)


def _close_of(error: FleetError | grpc.aio.AioRpcError) -> tuple[Close, str]:
    if isinstance(error, grpc.aio.AioRpcError):
        code = _CLOSES.get(error.code(), Close.TRY_LATER)
        return code, error.details() or code.name
    match error:
        case ShuttingDown():
            return Close.SHUTTING_DOWN, error.message
        case InvalidRequest():
            return Close.BAD_REQUEST, str(error)
        case ResourceExhausted():
            return Close.TOO_MANY, str(error)
        case Unavailable():
            return Close.TRY_LATER, str(error)
        case _:
            return Close.INTERNAL, error.message


def _shortened(reason: str) -> str:
    """A reason that fits into a close frame, which takes at most 123 bytes."""
    return reason.encode("utf-8", "replace")[:_REASON_BYTES].decode("utf-8", "ignore")


def stream_routes(feeds: Feeds, *, send_seconds: float = SEND_SECONDS) -> list[BaseRoute]:
    """The routes of events and audit chains. `send_seconds`: how long a WebSocket client may take to read a batch."""
    return [
        WebSocketRoute(PATH, WatchSocket(feeds, send_seconds=send_seconds)),
        Route(EVENTS_PATH, EventsPage(feeds).answer, methods=["GET"]),
        Route(AUDIT_PATH, Audit(feeds.upstream).answer, methods=["GET"]),
    ]
