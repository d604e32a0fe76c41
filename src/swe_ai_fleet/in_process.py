"""A log and a key-value store of one process, as strict as those on NATS: for use without a server, and for tests."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced, FleetError, NotFound, Unavailable
from swe_ai_fleet.domain.event import CONTROL_SUBJECT, EXECUTION_SUBJECT, Event, EventBody, StoredEvent, Writer
from swe_ai_fleet.ports import Journal, KeyValueChange, KeyValueEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """A result as a subscriber would hear it; `agent_id` is empty for the result of the execution."""

    tenant: str
    task_id: str
    execution_id: str
    agent_id: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    sequence: int
    subject: tuple[str, str, str]
    generation: int
    ordinal: int
    data: bytes

    def stored(self) -> StoredEvent:
        return StoredEvent(sequence=self.sequence, event=from_json(Event, self.data))


class MemoryLog:
    """`EventLog`, `BlobStore` and `ResultBus` of one process; events go through the codec as they do on the wire."""

    def __init__(self) -> None:
        self.results: list[PublishedResult] = []
        self._records: list[_Record] = []
        self._last: dict[tuple[str, str, str], _Record] = {}
        self._blobs: dict[str, bytes] = {}
        # In the order in which they came: a set would have them in that of their addresses.
        self._followers: dict[asyncio.Event, None] = {}

    @property
    def events(self) -> list[Event]:
        """Every event so far, in the order of the log."""
        return [record.stored().event for record in self._records]

    def journal(self, writer: Writer, *, fresh: bool = False) -> AbstractAsyncContextManager[Journal]:
        """The journal of a writer's subject; leaving the context flushes it. Entering may raise Fenced."""
        return self._journal(writer, fresh)

    async def tell(self, writer: Writer, body: EventBody) -> StoredEvent:
        """Append one event to a subject that many may write."""
        ordinal = self.last((writer.tenant, writer.execution_id, writer.agent_id))[2] + 1
        event = writer.event(body, ordinal=ordinal, at=datetime.now(UTC).isoformat())
        return StoredEvent(sequence=self.store(writer, ordinal, to_json(event)), event=event)

    async def read(
        self, tenant: str, execution_id: str, *, agent_id: str = "", from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[StoredEvent]:
        """An execution's events, or one writer's, from a sequence number on; with `follow` without an end."""
        subject = (tenant, execution_id, agent_id) if agent_id else (tenant, execution_id)
        places = len(subject)
        async for stored in self._select(lambda record: record.subject[:places] == subject, from_sequence, follow):
            if stored is not None:
                yield stored

    async def heads(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredEvent | None]:
        """What all executions say and are told; with `follow` a None after everything stored before the call."""
        heads = (EXECUTION_SUBJECT, CONTROL_SUBJECT)
        async for stored in self._select(lambda record: record.subject[2] in heads, from_sequence, follow):
            if stored is not None or follow:
                yield stored

    async def everything(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredEvent | None]:
        """The events of all executions and all their agents; otherwise as `heads`."""
        async for stored in self._select(lambda record: True, from_sequence, follow):
            if stored is not None or follow:
                yield stored

    async def put(self, tenant: str, execution_id: str, data: bytes, media_type: str, *, place: str = "") -> BlobRef:
        """Store content under its digest, or in a place."""
        digest = hashlib.sha256(data).hexdigest()
        name = f"{tenant}/{execution_id}/{place or digest}"
        self._blobs[name] = data
        return BlobRef(name=name, digest=digest, size=len(data), media_type=media_type)

    async def get(self, ref: BlobRef) -> bytes:
        """The content. Raises NotFound, also where the place has other content by now."""
        data = self._blobs.get(ref.name)
        if data is None or hashlib.sha256(data).hexdigest() != ref.digest:
            raise NotFound(f"no blob {ref.name}")
        return data

    async def discard(self, ref: BlobRef) -> None:
        """Forget what was put into a place."""
        self._blobs.pop(ref.name, None)

    async def publish(self, *, tenant: str, task_id: str, execution_id: str, agent_id: str, payload: bytes) -> bool:
        """Publish a result once; False when this execution's own stands there."""
        agent_id = "" if agent_id == EXECUTION_SUBJECT else agent_id
        result = PublishedResult(
            tenant=tenant, task_id=task_id, execution_id=execution_id, agent_id=agent_id, payload=payload
        )
        key = (tenant, task_id, execution_id, agent_id)
        if any(
            (published.tenant, published.task_id, published.execution_id, published.agent_id) == key
            for published in self.results
        ):
            return False
        self.results.append(result)
        return True

    def last(self, subject: tuple[str, str, str]) -> tuple[int, int, int]:
        """(sequence, generation, ordinal) of a subject's last event; zeros where there is none."""
        record = self._last.get(subject)
        return (record.sequence, record.generation, record.ordinal) if record else (0, 0, 0)

    def store(self, writer: Writer, ordinal: int, data: bytes) -> int:
        """Append without asking anything; the sequence number. For journals: tests write through one."""
        record = _Record(
            sequence=len(self._records) + 1,
            subject=(writer.tenant, writer.execution_id, writer.agent_id),
            generation=writer.generation,
            ordinal=ordinal,
            data=data,
        )
        self._records.append(record)
        self._last[record.subject] = record
        for follower in self._followers:
            follower.set()
        return record.sequence

    @asynccontextmanager
    async def _journal(self, writer: Writer, fresh: bool) -> AsyncGenerator[MemoryJournal]:
        opened = MemoryJournal(self, writer, fresh=fresh)
        try:
            yield opened
        except BaseException:
            with suppress(FleetError):
                await opened.flush()
            raise
        else:
            await opened.flush()
        finally:
            opened.close()

    async def _select(
        self, matches: Callable[[_Record], bool], from_sequence: int, follow: bool
    ) -> AsyncGenerator[StoredEvent | None]:
        position, news = max(from_sequence, 1) - 1, asyncio.Event()
        for record in self._records[position:]:
            position += 1
            if matches(record):
                yield record.stored()
        yield None
        self._followers[news] = None
        try:
            while follow:
                while position < len(self._records):
                    record = self._records[position]
                    position += 1
                    if matches(record):
                        yield record.stored()
                news.clear()
                if position >= len(self._records):
                    await news.wait()
        finally:
            self._followers.pop(news, None)


class MemoryJournal:
    """A `Journal` on a `MemoryLog`. After any fault it is closed."""

    def __init__(self, log: MemoryLog, writer: Writer, *, fresh: bool) -> None:
        self._log = log
        self._writer = writer
        self._fresh = fresh
        self._subject = (writer.tenant, writer.execution_id, writer.agent_id)
        self._sequence, generation, _ = (0, -1, 0) if fresh else log.last(self._subject)
        if self._sequence and generation >= writer.generation:
            raise Fenced(f"{'.'.join(self._subject)} belongs to generation {generation}")
        self._ordinal = 0
        self._owner = False
        self._queue: deque[tuple[int, bytes]] = deque()
        self._fault: FleetError | None = None

    def post(self, body: EventBody) -> Event:
        """Queue an event; it is written when the loop turns. Raises the fault that closed the journal, if one did."""
        if self._fault is not None:
            raise self._fault
        self._ordinal += 1
        event = self._writer.event(body, ordinal=self._ordinal, at=datetime.now(UTC).isoformat())
        self._queue.append((self._ordinal, to_json(event)))
        asyncio.get_running_loop().call_soon(self._drain)
        return event

    async def append(self, body: EventBody) -> Event:
        """Write an event. Raises Fenced, AlreadyExists."""
        event = self.post(body)
        await self.flush()
        return event

    async def flush(self) -> None:
        """Write everything posted. Raises as `append` does."""
        await asyncio.sleep(0)
        self._drain()
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Stop writing."""
        if self._fault is None:
            self._fault = Unavailable("the journal is closed")
        self._queue.clear()

    def _drain(self) -> None:
        while self._queue:
            ordinal, data = self._queue.popleft()
            sequence, generation, _ = self._log.last(self._subject)
            if sequence != self._sequence:
                if self._fresh and not self._owner:
                    self._fault = AlreadyExists(f"{'.'.join(self._subject)} already has events")
                elif self._owner or generation >= self._writer.generation:
                    self._fault = Fenced(f"{'.'.join(self._subject)} was taken over by generation {generation}")
                if self._fault is not None:
                    self._queue.clear()
                    return
            self._sequence = self._log.store(self._writer, ordinal, data)
            self._owner = True


class MemoryKeyValue:
    """A `KeyValue` of one process."""

    def __init__(self) -> None:
        self._last: dict[str, KeyValueChange] = {}
        self._revision = 0
        self._changed = asyncio.Event()

    async def get(self, key: str) -> KeyValueEntry | None:
        """The value, None where there is none (any more)."""
        return self._entry(key)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        """Store a value; its revision. Raises Fenced where it was changed since the `revision` given."""
        known = self._entry(key)
        if revision is not None and revision != (known.revision if known else 0):
            raise Fenced(f"{key} was changed by another process")
        return self._tell(key, value)

    async def delete(self, key: str) -> None:
        """Remove a value; nothing happens where there is none."""
        if self._entry(key) is not None:
            self._tell(key, None)

    async def entries(self, prefix: str = "") -> tuple[KeyValueEntry, ...]:
        """Everything under keys that begin so, by key."""
        entries_found = [self._entry(key) for key in sorted(self._last) if key.startswith(prefix)]
        return tuple(entry for entry in entries_found if entry is not None)

    async def changes(
        self, *, from_revision: int = 0, follow: bool = False
    ) -> AsyncGenerator[KeyValueChange | None, None]:
        """What was stored and removed from a revision on, the last of each key; with `follow` without an end."""
        position, caught_up = from_revision, False
        while True:
            changed = self._changed
            for change in sorted(self._last.values(), key=lambda change_kept: change_kept.revision):
                if change.revision >= position:
                    position = change.revision + 1
                    yield change
            if not caught_up:
                caught_up = True
                if not follow:
                    return
                yield None
            await changed.wait()

    def _entry(self, key: str) -> KeyValueEntry | None:
        last = self._last.get(key)
        if last is None or last.value is None:
            return None
        return KeyValueEntry(key=key, value=last.value, revision=last.revision)

    def _tell(self, key: str, value: bytes | None) -> int:
        self._revision += 1
        self._last[key] = KeyValueChange(key=key, value=value, revision=self._revision)
        self._changed.set()
        self._changed = asyncio.Event()
        return self._revision
