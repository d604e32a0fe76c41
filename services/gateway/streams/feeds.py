"""The feeds of all executions that are watched now."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import grpc

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.streams.feed import Feed, Going
from services.gateway.streams.ring import Ring
from services.gateway.streams.source import PATIENCE_SECONDS, Events, OpenEvents
from services.gateway.upstream import Upstream, method
from swe_ai_fleet.domain.errors import ResourceExhausted

FEED_BYTES = 4 * 1024 * 1024
ALL_FEEDS_BYTES = 96 * 1024 * 1024
LEAST_FEED_BYTES = 256 * 1024
LINGER_SECONDS = 5.0
READERS_OF_THE_PAST = 32
STREAM_EXECUTION = method("fleet.orchestrator.v1.OrchestratorService.StreamExecution")

Key = tuple[str, bool, bytes]
"""Whose events, whether models are heard, and a digest of what the services are shown."""


class Feeds:
    """A feed for each execution that somebody watches, shared by all who do, ended some seconds after the last.

    Args:
        upstream: Has the events.
        max_watchers: How many may watch at once, all executions together.
        linger: Seconds that a feed outlives its last watcher.
        patience: Seconds without the services after which watchers are sent away.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        max_watchers: int,
        linger: float = LINGER_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.past = asyncio.Semaphore(READERS_OF_THE_PAST)
        self.watchers = 0
        self._upstream = upstream
        self._max_watchers = max_watchers
        self._linger = linger
        self._patience = patience
        self._feeds: dict[Key, Feed] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._going = False

    @property
    def size(self) -> int:
        """Bytes that all feeds hold, about."""
        return sum(feed.ring.size for feed in self._feeds.values())

    @asynccontextmanager
    async def watching(self, execution_id: str, *, text: bool, token: str, caller: str) -> AsyncGenerator[Feed]:
        """The feed of an execution, for one watcher. Raises ResourceExhausted, Going.

        Only watchers who show the services the same share it: to everybody else those decide what it may see.
        """
        if self._going:
            raise Going("the gateway is going")
        if self.watchers >= self._max_watchers:
            raise ResourceExhausted(f"{self.watchers} watch already", field="http_max_watchers", hint="try again later")
        key = (execution_id, text, hashlib.sha256(token.encode()).digest())
        feed = self._feeds.get(key)
        if feed is None or feed.fault is not None:
            opened = self._events(execution_id, text=text, token=token, caller=caller)
            feed = self._feeds[key] = Feed(
                execution_id, opened, Ring(self._room), patience=self._patience, reachable=self._reachable
            )
            for other in self._feeds.values():
                other.ring.trim()
        self.watchers += 1
        feed.watchers += 1
        try:
            yield feed
        finally:
            self.watchers -= 1
            feed.watchers -= 1
            if not feed.watchers:
                ending = asyncio.create_task(self._end(key, feed))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End every feed; who still watches is sent away."""
        self._going = True
        for ending in list(self._ending):
            ending.cancel()
        await asyncio.gather(*self._ending, *(feed.close() for feed in self._feeds.values()), return_exceptions=True)
        self._feeds.clear()

    async def _end(self, key: Key, feed: Feed) -> None:
        await asyncio.sleep(0 if feed.fault is not None else self._linger)
        if feed.watchers:
            return
        if self._feeds.get(key) is feed:
            del self._feeds[key]
        await feed.close()

    def _room(self) -> int:
        """Bytes that one feed may hold: less the more there are."""
        return max(LEAST_FEED_BYTES, min(FEED_BYTES, ALL_FEEDS_BYTES // max(1, len(self._feeds))))

    def _reachable(self) -> bool:
        return self._upstream.orchestrator.get_state() is grpc.ChannelConnectivity.READY

    def _events(self, execution_id: str, *, text: bool, token: str, caller: str) -> OpenEvents:
        def opened(first: int) -> Events:
            request = pb.StreamExecutionRequest(execution_id=execution_id, from_sequence=first, include_text=text)
            return cast("Events", self._upstream.stream(STREAM_EXECUTION, request, token=token, caller=caller))

        return opened
