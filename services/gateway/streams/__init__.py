"""Executions as they happen, for HTTP: WebSockets, server-sent events, pages of events, audit chains."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute

from services.gateway.streams import pages, websocket
from services.gateway.streams.feeds import LINGER_SECONDS, OUTAGE_TIMEOUT_SECONDS, Feeds
from services.gateway.upstream import Upstream

__all__ = ["Streams"]


class Streams:
    """The routes, and the feeds behind them.

    Args:
        upstream: The services that have the events.
        max_watchers: How many may watch at once.
        linger: Seconds that a feed outlives its last watcher.
        outage_timeout: Seconds without the services after which watchers are sent away.
        send_seconds: How long the client of a WebSocket may take to read what is sent to it at once.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        max_watchers: int,
        linger: float = LINGER_SECONDS,
        outage_timeout: float = OUTAGE_TIMEOUT_SECONDS,
        send_seconds: float = websocket.SEND_SECONDS,
    ) -> None:
        self.feeds = Feeds(upstream, max_watchers=max_watchers, linger=linger, outage_timeout=outage_timeout)
        self._upstream = upstream
        self._send_seconds = send_seconds

    def routes(self) -> list[BaseRoute]:
        """What is served."""
        page, chains = pages.EventsPage(self.feeds), pages.Audit(self._upstream)
        return [
            WebSocketRoute(websocket.PATH, websocket.WatchSocket(self.feeds, send_seconds=self._send_seconds)),
            Route(pages.EVENTS_PATH, page.answer, methods=["GET"]),
            Route(pages.AUDIT_PATH, chains.answer, methods=["GET"]),
        ]

    async def close(self) -> None:
        """End every feed; who still watches is sent away."""
        await self.feeds.close()
