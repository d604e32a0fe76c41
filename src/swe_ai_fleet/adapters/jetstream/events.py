"""Events of the log, decoded once for all readers of a process.

A process that follows the whole log caches the events of executions that begin meanwhile, and serves readers of one
execution from that cache. Executions that began earlier, or take too much memory, are read from the server.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from urllib.parse import unquote

import structlog

from swe_ai_fleet.adapters.jetstream import streams
from swe_ai_fleet.adapters.jetstream.buckets import JetStreamBlobs
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.holdings import NewestSizes, sizes
from swe_ai_fleet.adapters.jetstream.protocol import (
    ALL_HEADS,
    EVENTS,
    STREAM_SUBJECTS,
    StoredMessage,
    event_of,
    event_subject,
    execution_filter,
    token,
)
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.requests import Ask, asked_messages
from swe_ai_fleet.domain.access import StoredPiece
from swe_ai_fleet.domain.errors import NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    ExecutionErased,
    ExecutionStarted,
    ResultPublished,
    StoredEvent,
)

_MOST_BYTES = 32 * 1024 * 1024
_EVENT_BYTES = 512
"""The memory that an event takes beside its text."""
_KEPT_SECONDS = 30.0
"""How long a finished execution stays cached for late readers."""
_LAG_SECONDS = 2.0
_SLICE = 128
_sequence = attrgetter("sequence")
_log = structlog.get_logger(__name__)


@dataclass(kw_only=True, eq=False)
class EventHistory:
    """All events of one execution so far, in order; a `closed` history gets no more."""

    events: list[StoredEvent] = field(default_factory=list[StoredEvent])
    bytes: int = 0
    closed: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last(self) -> int:
        """The sequence of its last event."""
        return self.events[-1].sequence

    def index_of(self, sequence: int) -> int:
        """The index of the first event from a sequence on."""
        return bisect_left(self.events, sequence, key=_sequence)

    def notify(self) -> None:
        """Wake all readers that wait in `changed`."""
        self._changed.set()
        self._changed.clear()

    async def changed(self) -> None:
        """Wait for another event, or until the history is closed."""
        await self._changed.wait()


class Histories:
    """The histories of executions that began while this process followed the whole log, the oldest first.

    `sizes` has the sizes of the newest events that were followed.
    """

    def __init__(self) -> None:
        self.sizes = NewestSizes()
        self._histories: dict[tuple[str, str], EventHistory] = {}
        self._bytes = 0
        self._feeder: object = None

    def get(self, tenant: str, execution_id: str) -> EventHistory | None:
        return self._histories.get((tenant, execution_id))

    def begin(self, feeder: object) -> None:
        """Accept events from a feeder from now on; the first of several feeders wins."""
        self._feeder = self._feeder or feeder

    def end(self, feeder: object) -> None:
        """Forget a feeder; if its events were the accepted ones, all histories are dropped."""
        if self._feeder is feeder:
            self._feeder = None
            self.sizes.end()
            for key in tuple(self._histories):
                self.drop(*key)

    def take(self, feeder: object, message: StoredMessage, stored: StoredEvent | None) -> None:
        """Add the next event of the log; `stored` is None for one that cannot be read."""
        if self._feeder is not feeder:
            return
        self.sizes.take(message)
        if stored is None:
            return
        size = len(message.data)
        event, body = stored.event, stored.event.body
        key = (event.tenant, event.execution_id)
        history = self._histories.get(key)
        if history is None:
            if not isinstance(body, ExecutionStarted) or event.agent_id != EXECUTION_SUBJECT:
                return
            history = self._histories[key] = EventHistory()
        history.events.append(stored)
        history.bytes += size + _EVENT_BYTES
        self._bytes += size + _EVENT_BYTES
        history.notify()
        if event.agent_id == EXECUTION_SUBJECT and isinstance(body, ExecutionErased):
            self.drop(*key)
        elif isinstance(body, ResultPublished):
            asyncio.get_running_loop().call_later(_KEPT_SECONDS, self.drop, *key)
        while self._bytes > _MOST_BYTES:
            self.drop(*next(iter(self._histories)))

    def drop(self, tenant: str, execution_id: str) -> None:
        """Stop caching an execution; its readers continue at the server."""
        history = self._histories.pop((tenant, execution_id), None)
        if history is not None:
            self._bytes -= history.bytes
            history.closed = True
            history.notify()


class EventReader:
    """The reading half of an `EventLog` over one connection."""

    def __init__(self, connection: Connection, blobs: JetStreamBlobs, timeout: float) -> None:
        self.connection = connection
        """The connection below, for calls about whole streams."""
        self._blobs = blobs
        self._timeout = timeout
        self._histories = Histories()

    async def read(
        self, tenant: str, execution_id: str, *, agent_id: str = "", from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[StoredEvent]:
        """An execution's events, or one writer's, from a sequence number on; with `follow` without an end.

        Raises:
            NotFound: There are no streams yet, or a large event's body is gone.
            PreconditionFailed: An event cannot be read (a newer version wrote it, say).
            Unavailable: NATS did not answer in time; once following there is no such limit.
        """
        start = from_sequence
        history = await self._cached(tenant, execution_id, follow=follow)
        if history is not None:
            index, end = history.index_of(start), len(history.events)
            while not history.closed and (follow or index < end):
                if index == len(history.events):
                    await history.changed()
                    continue
                stored = history.events[index]
                index, start = index + 1, stored.sequence + 1
                if index % _SLICE == 0:
                    # Reading a long history must not block the loop.
                    await asyncio.sleep(0)
                if agent_id in ("", stored.event.agent_id):
                    yield stored
            if index >= end and not follow:
                return
        if self.connection.is_host:
            # A login that may make consumers may have them deliver to any subject, so orchestrators read for hosts.
            if follow or not agent_id:
                raise PreconditionFailed("a host may only read the stored events of one writer", field="nats")
            stored = asked_messages(
                self.connection, Ask.EVENTS, tenant, execution_id, {"agent_id": agent_id}, start=start
            )
        else:
            stored = self._of_execution(tenant, execution_id, agent_id, start, follow=follow)
        async with aclosing(stored) as messages:
            async for message in messages:
                if message is not None:
                    yield await self._event(message)

    async def heads(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredEvent | None]:
        """Executions' own events and control events; with `follow` a None after everything stored before the call.

        An unreadable event is logged and skipped: it must not hide all others. Raises NotFound, Unavailable.
        """
        subjects = ALL_HEADS
        async with aclosing(self._readable(subjects, from_sequence=from_sequence, follow=follow)) as stored:
            async for message, head in stored:
                if head is not None or (follow and message is None):
                    yield head

    async def everything(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredEvent | None]:
        """The events of all executions and all their agents, of all tenants; otherwise as `heads`."""
        subjects, feeder = STREAM_SUBJECTS[EVENTS], object()
        try:
            async with aclosing(self._readable(subjects, from_sequence=from_sequence, follow=follow)) as stored:
                async for message, event in stored:
                    if message is not None:
                        self._histories.take(feeder, message, event)
                    elif follow:
                        self._histories.begin(feeder)
                    if event is not None or (follow and message is None):
                        yield event
        finally:
            self._histories.end(feeder)

    async def event_sizes(self, start: int) -> AsyncGenerator[StoredPiece | None]:
        """The sizes of events as `sizes` yields them, taken from `everything` as soon as that is followed."""
        newest, caught_up = self._histories.sizes, False
        while True:
            async with aclosing(sizes(self.connection, EVENTS, start, timeout=self._timeout)) as pieces:
                async for piece in pieces:
                    yield piece
                    caught_up = caught_up or piece is None
                    start = piece.sequence + 1 if piece is not None else start
                    if caught_up and newest.has(start - 1):
                        break
            async for piece in newest.after(start - 1):
                start = piece.sequence + 1
                yield piece

    async def _cached(self, tenant: str, execution_id: str, *, follow: bool) -> EventHistory | None:
        """An execution's history with everything stored by now; None where the server has to be read instead."""
        history = self._histories.get(tenant, execution_id)
        if history is None or follow:
            return history
        cached_until, subject = history.last, execution_filter(tenant, execution_id)
        last = await streams.last_message(self.connection, EVENTS, subject, timeout=self._timeout)
        if last is None or last.sequence < cached_until:
            # It was erased.
            self._histories.drop(tenant, execution_id)
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAG_SECONDS):
                while not history.closed and history.last < last.sequence:
                    await history.changed()
        return history if history.last >= last.sequence else None

    def _of_execution(
        self, tenant: str, execution_id: str, agent_id: str, start: int, *, follow: bool = False
    ) -> AsyncGenerator[StoredMessage | None]:
        subject = execution_filter(tenant, execution_id)
        if agent_id:
            subject = event_subject(tenant, execution_id, agent_id)
        return self._messages(subject, from_sequence=start, follow=follow)

    async def _readable(
        self, subjects: Sequence[str], *, from_sequence: int, follow: bool
    ) -> AsyncGenerator[tuple[StoredMessage | None, StoredEvent | None]]:
        """Messages with their events (None: unreadable); once (None, None), after everything stored before the call."""
        async with aclosing(self._messages(*subjects, from_sequence=from_sequence, follow=follow)) as stored:
            async for message in stored:
                if message is None:
                    yield None, None
                    continue
                event: StoredEvent | None = None
                try:
                    event = await self._event(message)
                except (PreconditionFailed, NotFound) as fault:
                    _log.error("jetstream.unreadable_event", subject=message.subject, reason=str(fault))
                    # Readers of this execution have to get the fault as well, from the server.
                    self._histories.drop(*(unquote(part) for part in message.subject.split(".")[2:4]))
                yield message, event

    def _messages(self, *subjects: str, from_sequence: int, follow: bool) -> AsyncGenerator[StoredMessage | None]:
        return messages(self.connection, EVENTS, *subjects, start=from_sequence, follow=follow, timeout=self._timeout)

    async def _event(self, message: StoredMessage) -> StoredEvent:
        try:
            event = await event_of(message.data, self._blobs)
        except ValueError as error:
            raise PreconditionFailed(
                f"the event at sequence {message.sequence} on {message.subject} cannot be read: {error}"[:1000],
                hint="it may be of a newer version of the fleet",
            ) from error
        # Only the subject is trustworthy: NATS limits each writer to its own subjects, but not what the message says.
        claimed = (event.tenant, event.execution_id, event.agent_id)
        actual = tuple(message.subject.split(".")[2:])
        if claimed != actual and tuple(token(name or "-") for name in claimed) != actual:
            tenant, execution_id, agent_id = map(unquote, actual)
            event = replace(event, tenant=tenant, execution_id=execution_id, agent_id=agent_id)
        return StoredEvent(sequence=message.sequence, event=event)
