"""Executions as they happen, for HTTP: WebSockets, server-sent events, pages of events, audit chains."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute

from services.gateway.streams import audit, pages, websocket
from services.gateway.streams.feeds import Feeds
from services.gateway.upstream import Upstream


class Streams:
    """The routes, and the feeds behind them.

    Args:
        upstream: The services that have the events.
        max_watchers: How many may watch at once.
    """

    def __init__(self, upstream: Upstream, *, max_watchers: int) -> None:
        self._upstream = upstream
        self._feeds = Feeds(upstream, max_watchers=max_watchers)

    def routes(self) -> list[BaseRoute]:
        """What is served."""
        page, chains = pages.EventsPage(self._feeds), audit.Audit(self._upstream)
        return [
            WebSocketRoute(websocket.PATH, websocket.WatchSocket(self._feeds)),
            Route(pages.PATH, page.answer, methods=["GET"]),
            Route(audit.PATH, chains.answer, methods=["GET"]),
        ]

    async def close(self) -> None:
        """End every feed; who still watches is sent away."""
        await self._feeds.close()
