"""Feeds: each execution's messages, read from the services once for all who watch it, across outages."""

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
"""Seconds before each further attempt; the last one again and again."""
OUTAGE_TIMEOUT_SECONDS = 30.0
"""Without the services for so long, watchers are sent away."""
LOOK_SECONDS = 0.5
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
    lost: Callable[[str], None] = lambda _: None,
    back: Callable[[], None] = lambda: None,
) -> Events:
    """All events of an execution, once each and in order, until it ends, across failures of the service.

    Args:
        open_events: Streams them from a sequence number on.
        reachable: Whether the service can be reached now; a service that is back may have nothing to tell.
        lost: Told why, when the service begins to fail.
        back: Told when it answers again.

    Raises:
        grpc.aio.AioRpcError: What no other attempt can fix, such as an execution that does not exist.
        Unavailable: The service does not answer.
    """
    last, ended, loop = 0, False, asyncio.get_running_loop()
    failing_since: float | None = None
    pauses = waits(PAUSES)

    def answered() -> None:
        nonlocal failing_since, pauses
        if failing_since is not None:
            failing_since, pauses = None, waits(PAUSES)
            back()

    while True:
        looking = asyncio.create_task(_reached(reachable, answered)) if failing_since is not None else None
        try:
            async with aclosing(open_events(last + 1 if last else 0)) as events:
                async for event in events:
                    answered()
                    if event.sequence:
                        if event.sequence <= last:
                            continue
                        last = event.sequence
                    yield event
                    # What people had delivered after the end comes behind it.
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
            if looking is not None:
                looking.cancel()
        if failing_since is None:
            failing_since = loop.time()
            lost("the orchestrator does not answer")
            _log.warning("watching.source_lost", reason=reason)
        pause = next(pauses)
        if loop.time() - failing_since + pause > OUTAGE_TIMEOUT_SECONDS:
            raise Unavailable("the orchestrator does not answer", hint="try again later")
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, not a secret


async def _reached(reachable: Callable[[], bool], answered: Callable[[], None]) -> None:
    """Tell once the service can be reached, for as long as a stream that was just opened does not fail."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if reachable():
            answered()
            return


SETTLED_SECONDS = 0.25
"""Without an event for so long, what is stored is read, and what comes is new."""
_FRESH_MS = 1_000
_YIELD_EVERY = 64
_PAUSE_A_WATCHER = 0.0001
_LONGEST_PAUSE = 0.1


class Going(Unavailable):
    """The gateway ends."""


class Feed:
    """Reads an execution's events, keeps the last messages of them, and wakes who waits for more.

    With many watchers they are woken less often, each time for more: up to a tenth of a second later. `reachable` says
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
        self._fresh = False
        self._loop = asyncio.get_running_loop()
        self._last_at = self._woken_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._read(), name=f"feed {execution_id}")

    @property
    def over(self) -> bool:
        """Whether nothing more will come: the execution has ended, or its events cannot be had."""
        return self.ended or self.fault is not None

    @property
    def settled(self) -> bool:
        # Every execution has a first event: without one the services have not answered yet.
        silent = self.ring.sequence > 0 and self._loop.time() - self._last_at > SETTLED_SECONDS
        self._fresh = self._fresh or self.over or silent
        return self._fresh

    async def changed(self, seconds: float | None = None) -> None:
        """Wait until there is more, or the feed is over; at most so many seconds."""
        if self.over:
            return
        waiting = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiting.wait()

    async def close(self) -> None:
        """Read no more, and send away who still waits."""
        self.fault = self.fault or (None if self.ended else Going("the gateway is shutting down"))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    async def _read(self) -> None:
        fold, count = Messages(), 0
        events = steady_events(
            self.open_events,
            reachable=self._reachable,
            lost=lambda why: self._notice(
                "source_lost", f"{why}; nothing is lost; the stream continues when it answers"
            ),
            back=lambda: self._notice("source_back", "the orchestrator answers again"),
        )
        try:
            async for event in events:
                self.ring.add(fold.of(event))
                self._last_at = self._loop.time()
                # While the past is read, this says nothing of the present.
                self._fresh = self._fresh or event.at_ms >= self._opened_ms - _FRESH_MS
                self._published()
                count += 1
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            self.ended = True
        except (grpc.aio.AioRpcError, FleetError) as error:
            self.fault = error
        except Exception:  # noqa: BLE001 - the edge of a background task
            # Nobody waits for this task, so it is told here.
            _log.exception("watching.feed_failed", execution_id=self.execution_id)
            self.fault = InternalFault("the events cannot be read")
        finally:
            await events.aclose()
            self._wake()

    def _notice(self, code: str, message: str) -> None:
        self.ring.add(notice(self.execution_id, code, message))
        self._published()

    def _published(self) -> None:
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
    """What the gateway itself has to say; it has no place in the log, and so no sequence."""
    fields: dict[str, object] = {"code": code, "message": message}
    if resume_from is not None:
        fields["resume_from"] = resume_from
    return StreamMessage(0, "notice", json_bytes({"type": "notice", "execution_id": execution_id, "notice": fields}))


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
        max_watchers: How many may watch at once, all executions together.
        linger: Seconds that a feed outlives its last watcher.
    """

    def __init__(self, upstream: Upstream, *, max_watchers: int, linger: float = LINGER_SECONDS) -> None:
        self.past = asyncio.Semaphore(READERS_OF_THE_PAST)
        self.watchers = 0
        self.upstream = upstream
        self._max_watchers = max_watchers
        self._linger = linger
        self._feeds: dict[Key, Feed] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._going = False

    @property
    def size(self) -> int:
        """Bytes that all feeds hold, about."""
        return sum(feed.ring.size for feed in self._feeds.values())

    @asynccontextmanager
    async def watching(self, execution_id: str, caller: Caller, *, text: bool) -> AsyncGenerator[Feed]:
        """The feed of an execution, for one watcher. Raises ResourceExhausted, Going.

        Only watchers who show the services the same share it: to everybody else those decide what it may see.
        """
        if self._going:
            raise Going("the gateway is shutting down")
        if self.watchers >= self._max_watchers:
            raise ResourceExhausted(
                f"{self.watchers} clients watch already; no more are allowed",
                field="http_max_watchers",
                hint="try again later",
            )
        key = (execution_id, text, hashlib.sha256(caller.token.encode()).digest())
        feed = self._feeds.get(key)
        if feed is None or feed.fault is not None:
            opened = self._events(execution_id, caller, text=text)
            feed = self._feeds[key] = Feed(execution_id, opened, Ring(self._room), self._reachable)
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
        return self.upstream.orchestrator.get_state() is grpc.ChannelConnectivity.READY

    def _events(self, execution_id: str, caller: Caller, *, text: bool) -> OpenEvents:
        def opened(first: int) -> Events:
            request = pb.StreamExecutionRequest(execution_id=execution_id, from_sequence=first, include_text=text)
            return cast("Events", self.upstream.stream(STREAM_EXECUTION, request, caller))

        return opened
