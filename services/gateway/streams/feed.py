"""One execution's messages, read from the services once for all who watch it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc.aio
import structlog

from services.gateway.streams.messages import Message, Messages, json_bytes
from services.gateway.streams.ring import Ring
from services.gateway.streams.source import PATIENCE_SECONDS, OpenEvents, steady_events
from swe_ai_fleet.domain.errors import FleetError, InternalFault, Unavailable

SETTLED_SECONDS = 0.25
"""Without an event for so long, what is stored is read, and what comes is new."""
_FRESH_MS = 1_000
_YIELD_EVERY = 64
_PAUSE_A_WATCHER = 0.0001
_LONGEST_PAUSE = 0.1

_log = structlog.get_logger(__name__)


class Going(Unavailable):
    """The gateway ends."""


class Feed:
    """Reads an execution's events, keeps the last messages of them, and wakes who waits for more.

    With many watchers they are woken less often, each time for more: up to a tenth of a second later.

    Args:
        execution_id: Whose events.
        open_events: Streams them from a sequence number on.
        ring: Takes the messages.
        patience: Seconds without the services after which the feed ends.
        reachable: Whether the services can be reached now.
    """

    def __init__(
        self,
        execution_id: str,
        open_events: OpenEvents,
        ring: Ring,
        *,
        patience: float = PATIENCE_SECONDS,
        reachable: Callable[[], bool] = lambda: False,
    ) -> None:
        self.execution_id = execution_id
        self.open_events = open_events
        self.ring = ring
        self.watchers = 0
        self.ended = False
        self.fault: Exception | None = None
        self._patience = patience
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
        """Whether everything that was stored when the feed began has been read."""
        # Every execution has a first event: without one the services have not answered yet.
        silent = self.ring.sequence > 0 and self._loop.time() - self._last_at > SETTLED_SECONDS
        self._fresh = self._fresh or self.over or silent
        return self._fresh

    async def changed(self, seconds: float | None = None) -> None:
        """Wait until there is more, or the feed is over; at most so many seconds."""
        if self.over:
            return
        waiting = self._changed
        try:
            async with asyncio.timeout(seconds):
                await waiting.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Read no more, and send away who still waits."""
        self.fault = self.fault or (None if self.ended else Going("the gateway is going"))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    async def _read(self) -> None:
        fold, count = Messages(), 0
        events = steady_events(
            self.open_events, patience=self._patience, reachable=self._reachable, lost=self._lost, back=self._back
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

    def _lost(self, reason: str) -> None:
        self._notice("source_lost", f"{reason}; nothing is missed, it goes on when it answers")

    def _back(self) -> None:
        self._notice("source_back", "the orchestrator answers again")

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


def notice(execution_id: str, code: str, message: str, *, resume_from: int | None = None) -> Message:
    """What the gateway itself has to say; it has no place in the log, and so no sequence."""
    told: dict[str, object] = {"code": code, "message": message}
    if resume_from is not None:
        told["resume_from"] = resume_from
    return Message(0, "notice", json_bytes({"type": "notice", "execution_id": execution_id, "notice": told}))
