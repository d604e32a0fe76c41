"""`GET /api/executions/{execution_id}/events`: a page of an execution's messages, or all of them as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.caller import caller_of
from services.gateway.event_stream import wants_events
from services.gateway.streams.asking import check_names, flag, number, number_of
from services.gateway.streams.feeds import Feeds
from services.gateway.streams.following import TooSlow, follow
from services.gateway.streams.messages import Message
from services.gateway.streams.ring import Batch
from services.gateway.streams.sse import EventStream
from swe_ai_fleet.domain.errors import Unavailable

PATH = "/api/executions/{execution_id}/events"
DEFAULT_LIMIT, MOST = 200, 1_000
PAGE_BYTES = 4 * 1024 * 1024


class EventsPage:
    """Answers with a page of JSON, or with server-sent events where those are asked for."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raises InvalidRequest, grpc.aio.AioRpcError."""
        if wants_events(request.headers.get("accept", "")):
            return await self._stream(request)
        return await self._page(request)

    async def _stream(self, request: Request) -> Response:
        check_names(request, ("from", "events", "text"))
        seen = request.headers.get("last-event-id")
        first = number(request, "from", 0) if seen is None else number_of(seen, "Last-Event-ID") + 1
        execution_id, caller, text = request.path_params["execution_id"], caller_of(request), flag(request, "text")
        events = flag(request, "events")
        stream = EventStream(self._feeds, execution_id, first, caller, text=text, events=events)
        # What is wrong is told by a status, so the beginning is awaited before anything is sent.
        return stream if await stream.begins() else Response(status_code=204)

    async def _page(self, request: Request) -> Response:
        check_names(request, ("from", "events", "limit"))
        first, limit = number(request, "from", 0), number(request, "limit", DEFAULT_LIMIT, least=1, most=MOST)
        events, caller = flag(request, "events", default=True), caller_of(request)
        execution_id = request.path_params["execution_id"]
        messages, size, full, ended = list[Message](), 0, False, False
        async with (
            self._feeds.watching(execution_id, text=False, token=caller.token, caller=caller.name) as feed,
            aclosing(follow(feed, first, self._feeds.past, wait=False)) as batches,
        ):
            try:
                async for message in _stored(batches):
                    size += message.size
                    full = bool(messages) and (len(messages) >= limit or size > PAGE_BYTES)
                    if full:
                        break
                    messages.append(message)
            except TooSlow:
                raise Unavailable("the execution went on faster than its events were read") from None
            ended = feed.ended and not full
        following = messages[-1].sequence + 1 if messages else first
        bodies = b",".join(message.body(events) for message in messages)
        told = b'{"events":[%b],"next_from":%d,"ended":%b}' % (bodies, following, b"true" if ended else b"false")
        return Response(told, media_type="application/json", headers={"cache-control": "no-store"})


async def _stored(batches: AsyncGenerator[Batch, None]) -> AsyncGenerator[Message, None]:
    async for batch in batches:
        for message in batch.messages:
            if message.sequence:
                yield message
