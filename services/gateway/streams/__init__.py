"""Executions as they happen, for HTTP: WebSockets, server-sent events, pages of events, audit chains."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute

from services.gateway.streams import pages, websocket
from services.gateway.streams.feeds import Feeds
from services.gateway.streams.messages import Messages as Messages


def stream_routes(feeds: Feeds, *, send_seconds: float = websocket.SEND_SECONDS) -> list[BaseRoute]:
    """What is served of feeds. `send_seconds`: how long a WebSocket's client may take to read what is sent at once."""
    return [
        WebSocketRoute(websocket.PATH, websocket.WatchSocket(feeds, send_seconds=send_seconds)),
        Route(pages.EVENTS_PATH, pages.EventsPage(feeds).answer, methods=["GET"]),
        Route(pages.AUDIT_PATH, pages.Audit(feeds.upstream).answer, methods=["GET"]),
    ]
