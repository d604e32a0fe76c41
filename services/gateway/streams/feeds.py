"""Feeds: each execution's messages, read from the services once for all its watchers, across outages."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import cast

import grpc
import grpc.aio
import structlog

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.streams.messages import TERMINAL, Messages, StreamMessage, json_bytes
from services.gateway.streams.ring import Ring
from services.gateway.upstream import Caller, Upstream, method
from swe_ai_fleet.domain.errors import FleetError, InternalFault, ResourceExhausted, Unavailable
from swe_ai_fleet.following import waits

Events = AsyncGenerator[pb.ExecutionEvent, None]
OpenEvents = Callable[[int], Events]
"""An execution's events from a sequence number on."""
PAUSES = (0.1, 0.3, 1.0, 2.0)
"""Seconds before each further attempt; the last one repeats."""
OUTAGE_TIMEOUT_SECONDS = 30.0
"""After an outage of this length watchers are disconnected."""
_REACHABLE_POLL_SECONDS = 0.5
_FINAL = frozenset(
    (
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
)

_log = structlog.get_logger(__name__)


async def steady_events(
    open_events: OpenEvents,
    *,
    reachable: Callable[[], bool] = lambda: False,
    on_lost: Callable[[str], None] = lambda _: None,
    on_back: Callable[[], None] = lambda: None,
) -> Events:
    """All events of an execution, once each and in order, until it ends, across failures of the service.

    Args:
        reachable: Whether the service can be reached now; a service that is back may have no new event to send.

    Raises:
        grpc.aio.AioRpcError: An error that no other attempt can fix, such as an execution that does not exist.
        Unavailable: The service does not answer.
    """
    last, ended, loop = 0, False, asyncio.get_running_loop()
    failing_since: float | None = None
    pauses = waits(PAUSES)

    def answered() -> None:
        nonlocal failing_since, pauses
        if failing_since is not None:
            failing_since, pauses = None, waits(PAUSES)
            on_back()

    while True:
        polling = asyncio.create_task(_await_reachable(reachable, answered)) if failing_since is not None else None
        try:
            async with aclosing(open_events(last + 1 if last else 0)) as events:
                async for event in events:
                    answered()
                    if event.sequence:
                        if event.sequence <= last:
                            continue
                        last = event.sequence
                    yield event
                    # Deliveries that people ask for after the end follow the last event.
                    ended = ended or event.type == TERMINAL
            if ended:
                return
            reason = "the events ended before the execution did"
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            if ended:
                return
            if isinstance(error, grpc.aio.UsageError):
                raise Unavailable("the orchestrator can no longer be reached") from error
            if error.code() in _FINAL:
                raise
            reason = f"{error.code().name}: {error.details() or ''}"
        finally:
            if polling is not None:
                polling.cancel()
        if failing_since is None:
            failing_since = loop.time()
            on_lost("the orchestrator does not answer")
            _log.warning("watching.source_lost", reason=reason)
        pause = next(pauses)
        if loop.time() - failing_since + pause > OUTAGE_TIMEOUT_SECONDS:
            raise Unavailable("the orchestrator does not answer", hint="try again later")
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, not a secret


async def _await_reachable(reachable: Callable[[], bool], answered: Callable[[], None]) -> None:
    """Call `answered` once the service can be reached; the stream may stay silent for long."""
    while True:
        await asyncio.sleep(_REACHABLE_POLL_SECONDS)
        if reachable():
            answered()
            return


QUIET_SECONDS = 0.25
"""After this time without an event, all stored events have been read and the next ones are new."""
_RECENT_MS = 1_000
_YIELD_EVERY = 64
_PAUSE_A_WATCHER = 0.0001
_LONGEST_PAUSE = 0.1


class ShuttingDown(Unavailable):
    """The gateway is shutting down."""


class Feed:
    """Reads an execution's events, keeps their last messages, and wakes the watchers that wait for more.

    Many watchers are woken less often, with more messages each time: up to a tenth of a second later. `reachable` says
    whether the services can be reached now.
    """

    def __init__(self, execution_id: str, open_events: OpenEvents, ring: Ring, reachable: Callable[[], bool]) -> None:
        self.execution_id = execution_id
        self.open_events = open_events
        self.ring = ring
        self.watchers = 0
        self.ended = False
        self.fault: Exception | None = None
        self._reachable = reachable
        self._opened_ms = time.time() * 1000
        self._caught_up = False
        self._loop = asyncio.get_running_loop()
        self._last_at = self._woken_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._read(), name=f"feed {execution_id}")

    @property
    def over(self) -> bool:
        """Whether no more events will come: the execution has ended, or its events cannot be read."""
        return self.ended or self.fault is not None

    @property
    def caught_up(self) -> bool:
        """Whether all stored events have been read."""
        # Every execution has a first event: before it the services have not answered yet.
        quiet = self.ring.sequence > 0 and self._loop.time() - self._last_at > QUIET_SECONDS
        self._caught_up = self._caught_up or self.over or quiet
        return self._caught_up

    async def changed(self, seconds: float | None = None) -> None:
        """Wait for more messages or the feed's end, at most for so many seconds."""
        if self.over:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def close(self) -> None:
        """Stop reading; watchers that still wait get ShuttingDown."""
        self.fault = self.fault or (None if self.ended else ShuttingDown("the gateway is shutting down"))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    async def _read(self) -> None:
        fold, count = Messages(), 0
        events = steady_events(
            self.open_events,
            reachable=self._reachable,
            on_lost=lambda why: self._notice(
                "source_lost", f"{why}; nothing is lost; the stream continues when it answers"
            ),
            on_back=lambda: self._notice("source_back", "the orchestrator answers again"),
        )
        try:
            async for event in events:
                self.ring.add(fold.of(event))
                self._last_at = self._loop.time()
                self._caught_up = self._caught_up or event.at_ms >= self._opened_ms - _RECENT_MS
                self._schedule_wake()
                count += 1
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            self.ended = True
        except (grpc.aio.AioRpcError, FleetError) as error:
            self.fault = error
        except Exception:  # noqa: BLE001 - the edge of a background task
            # Nothing awaits this task, so the error is logged here.
            _log.exception("watching.feed_failed", execution_id=self.execution_id)
            self.fault = InternalFault("the events cannot be read")
        finally:
            await events.aclose()
            self._wake()

    def _notice(self, code: str, message: str) -> None:
        self.ring.add(notice(self.execution_id, code, message))
        self._schedule_wake()

    def _schedule_wake(self) -> None:
        if self._timer is not None:
            return
        due = self._woken_at + min(_LONGEST_PAUSE, _PAUSE_A_WATCHER * self.watchers) - self._loop.time()
        if due <= 0:
            self._wake()
        else:
            self._timer = self._loop.call_later(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._woken_at = self._loop.time()
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()


def notice(execution_id: str, code: str, message: str, *, resume_from: int | None = None) -> StreamMessage:
    """A message of the gateway itself. It is not in the log, so it has no sequence number."""
    fields: dict[str, object] = {"code": code, "message": message}
    if resume_from is not None:
        fields["resume_from"] = resume_from
    return StreamMessage(0, "notice", json_bytes({"type": "notice", "execution_id": execution_id, "notice": fields}))


FEED_BYTES = 4 * 1024 * 1024
ALL_FEEDS_BYTES = 96 * 1024 * 1024
LEAST_FEED_BYTES = 256 * 1024
LINGER_SECONDS = 5.0
MAX_LOG_READERS = 32
"""Watchers that may read events again that their feed has dropped, at once."""
STREAM_EXECUTION = method("fleet.orchestrator.v1.OrchestratorService.StreamExecution")

Key = tuple[str, bool, bytes]
"""The execution, whether with the models' live text, and a digest of the caller's token."""


class Feeds:
    """One feed for each execution that is watched, shared by its watchers.

    Args:
        linger: Seconds that a feed outlives its last watcher.
    """

    def __init__(self, upstream: Upstream, *, max_watchers: int, linger: float = LINGER_SECONDS) -> None:
        self.log_readers = asyncio.Semaphore(MAX_LOG_READERS)
        self.watchers = 0
        self.upstream = upstream
        self._max_watchers = max_watchers
        self._linger = linger
        self._feeds: dict[Key, Feed] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def size(self) -> int:
        """Bytes that all feeds hold, approximately."""
        return sum(feed.ring.size for feed in self._feeds.values())

    @asynccontextmanager
    async def watching(self, execution_id: str, caller: Caller, *, text: bool) -> AsyncGenerator[Feed]:
        """The feed of an execution, for one watcher. Raises ResourceExhausted, ShuttingDown.

        Only watchers with the same token share it, because the services decide by the token what a caller may see.
        """
        if self._closing:
            raise ShuttingDown("the gateway is shutting down")
        if self.watchers >= self._max_watchers:
            raise ResourceExhausted(
                f"{self.watchers} clients watch already; no more are allowed",
                field="http_max_watchers",
                hint="try again later",
            )
        key = (execution_id, text, hashlib.sha256(caller.token.encode()).digest())
        feed = self._feeds.get(key)
        if feed is None or feed.fault is not None:
            open_events = self._open_events(execution_id, caller, text=text)
            feed = self._feeds[key] = Feed(execution_id, open_events, Ring(self._max_feed_bytes), self._reachable)
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
        """Close every feed; watchers get ShuttingDown."""
        self._closing = True
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

    def _max_feed_bytes(self) -> int:
        """Bytes that one feed may hold: the more feeds, the fewer."""
        return max(LEAST_FEED_BYTES, min(FEED_BYTES, ALL_FEEDS_BYTES // max(1, len(self._feeds))))

    def _reachable(self) -> bool:
        return self.upstream.orchestrator.get_state() is grpc.ChannelConnectivity.READY

    def _open_events(self, execution_id: str, caller: Caller, *, text: bool) -> OpenEvents:
        def open_events(first: int) -> Events:
            request = pb.StreamExecutionRequest(execution_id=execution_id, from_sequence=first, include_text=text)
            return cast("Events", self.upstream.stream(STREAM_EXECUTION, request, caller))

        return open_events
