"""Conditional writes: the journal of a subject's only writer, events on shared subjects, and results published once.

Each publish of a journal names the last sequence it expects on the subject. A publish of another writer in between
makes that wrong, and the server refuses the journal's later ones: that is the fence. A repeated publish whose answer
got lost is refused in the same way, so after a refusal the subject's last message is read: if it has the same bytes,
the event is stored.

On a stream that takes atomic batches (ADR-50 of NATS) posted events wait a moment for an event that must be durable and
are published with it: the first message has the expected sequence, the last one is answered. The events of a batch that
is refused for another reason are published one by one.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from itertools import accumulate, islice

import structlog

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import (
    EVENTS,
    EXPECTED_SEQUENCE,
    MAX_EVENT_BYTES,
    MESSAGE_ID,
    RESULTS,
    ApiFault,
    Backoff,
    NatsMessage,
    OutgoingMessage,
    PublishRefused,
    StoredMessage,
    Unanswered,
    event_subject,
    generation_and_ordinal,
    headers_of,
    outgoing,
    result_subject,
)
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.requests import Ask, ask
from swe_ai_fleet.adapters.jetstream.streams import last_message
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced, FleetError, Unavailable
from swe_ai_fleet.domain.event import Event, EventBody, StoredEvent, Writer
from swe_ai_fleet.domain.json_values import json_object, mapping
from swe_ai_fleet.ports import BlobStore

_WAIT_SECONDS = 0.02
"""How long a posted event waits for more: the events of a step are milliseconds apart."""
_BATCH_EVENTS, _BATCH_BYTES = 100, 1024 * 1024
_log = structlog.get_logger(__name__)
EXECUTION_HEADER = "Fleet-Execution-Id"


class JetStreamJournal:
    """A `Journal`. Any fault closes it, so that no event follows a gap."""

    def __init__(
        self,
        connection: Connection,
        blobs: BlobStore,
        writer: Writer,
        *,
        fresh: bool,
        timeout: float,
        sequence: int = 0,
    ) -> None:
        self._connection = connection
        self._blobs = blobs
        self._writer = writer
        self._subject = event_subject(writer.tenant, writer.execution_id, writer.agent_id)
        self._fresh = fresh
        self._timeout = timeout
        self._sequence = sequence
        self._ordinal = 0
        self._durable = 0
        self._owner = False
        self._queue: deque[tuple[Event, bytes]] = deque()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._sent = False
        self._fault: FleetError | None = None

    @property
    def open(self) -> bool:
        return self._fault is None

    def post(self, body: EventBody) -> Event:
        if self._fault is not None:
            raise _copied(self._fault)
        ordinal = self._ordinal + 1
        event = self._writer.event(body, ordinal=ordinal, at=datetime.now(UTC).isoformat())
        self._queue.append((event, to_json(event)))
        self._ordinal = ordinal
        if not self._connection.batches:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WAIT_SECONDS, self._begin)
        return event

    async def append(self, body: EventBody) -> Event:
        event = self.post(body)
        await self.flush()
        return event

    async def flush(self) -> None:
        if self._fault is not None:
            raise _copied(self._fault)
        if self._durable < self._ordinal:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((self._ordinal, future))
            self._begin()
            await future

    async def close(self) -> None:
        """Stop writing; events that are not durable by now may be lost."""
        self._break(Unavailable("the journal is closed"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin(self) -> None:
        """Store the queued events; a single one is sent at once, in this turn of the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None or self._sent or not self._queue:
            return
        event, payload = self._queue[0]
        if len(payload) > MAX_EVENT_BYTES or (self._connection.batches and len(self._queue) > 1):
            self._drain_from(0)
            return
        message = OutgoingMessage(payload, {**headers_of(event), EXPECTED_SEQUENCE: str(self._sequence)})
        self._sent = True
        try:
            self._connection.ask(self._subject, [message], self._on_answer)
        except (Unanswered, FleetError):
            self._sent = False
            self._drain_from(0)

    def _on_answer(self, answer: NatsMessage | Exception) -> None:
        """Continue after a stored event; an event that may or may not be stored is left to `_drain`."""
        self._sent = False
        if self._fault is not None:
            return
        if isinstance(answer, FleetError):
            self._break(answer)
        elif isinstance(answer, NatsMessage):
            reply = json_object(answer.data)
            sequence, fault = reply.get("seq"), mapping(reply, "error")
            if isinstance(sequence, int) and not fault and not reply.get("duplicate"):
                self._sequence = sequence
                self._stored(1)
                self._begin()
            else:
                # `_drain` gets the same refusal again; a server that was only busy may have stored the event.
                self._drain_from(int(bool(fault) and ApiFault.from_json(fault).passing))
        else:
            self._drain_from(1)

    def _drain_from(self, unanswered: int) -> None:
        self._task = asyncio.get_running_loop().create_task(self._drain(unanswered))

    def _stored(self, count: int) -> None:
        """Take the first `count` events, now durable, off the queue."""
        for _ in range(count):
            self._queue.popleft()
        self._durable += count
        self._owner = True
        while self._waiters and self._waiters[0][0] <= self._durable:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)

    async def _drain(self, unanswered: int) -> None:
        """Store all queued events; the first was sent `unanswered` times without an answer."""
        try:
            while self._queue:
                self._stored(await self._store(self._next_batch(), unanswered))
                unanswered = 0
        except FleetError as fault:
            self._break(fault)
        finally:
            self._task = None
            if self._queue:
                self._break(Unavailable("the journal's writer stopped"))

    def _next_batch(self) -> Sequence[tuple[Event, bytes]]:
        """The queued events that fit into the next batch, at least one."""
        queued = list(islice(self._queue, _BATCH_EVENTS if self._connection.batches else 1))
        sizes = accumulate(min(len(payload), MAX_EVENT_BYTES) for _, payload in queued)
        return queued[: max(1, sum(size <= _BATCH_BYTES for size in sizes))]

    def _break(self, fault: FleetError) -> None:
        if self._fault is None:
            self._fault = fault
        self._queue.clear()
        self._begin()
        while self._waiters:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_exception(_copied(self._fault))

    async def _store(self, queued: Sequence[tuple[Event, bytes]], unanswered: int) -> int:
        """Store the first of these events, at least one; returns how many."""
        messages = [await outgoing(event, payload, self._blobs) for event, payload in queued]
        backoff = Backoff.lasting(self._timeout)
        together = len(messages)
        while True:
            messages[0].headers[EXPECTED_SEQUENCE] = str(self._sequence)
            *before, (payload, headers) = messages[:together]
            try:
                ack = await self._connection.publish(
                    self._subject, payload, headers=headers, before=before, timeout=None, backoff=backoff
                )
            except PublishRefused as refusal:
                unanswered += refusal.unanswered
                if stored := await self._settle(messages, unanswered):
                    return stored
                if refusal.fault.conflict:
                    await backoff.wait(refusal)
                else:
                    together = 1
            else:
                if ack.duplicate and not unanswered + ack.unanswered:
                    identity = messages[0].headers[MESSAGE_ID]
                    raise Fenced(f"{self._subject} holds an event {identity} that this writer did not send")
                self._sequence = ack.sequence
                return together

    async def _settle(self, messages: Sequence[OutgoingMessage], unanswered: int) -> int:
        """How many of the refused events are stored after all, 0 to send them again. Raises Fenced, AlreadyExists."""
        last = await last_message(self._connection, EVENTS, self._subject, timeout=self._timeout)
        sequence = last.sequence if last is not None else 0
        first_of_fresh = self._fresh and not self._owner
        if last is not None and (unanswered or not first_of_fresh):
            # A batch may be stored in part: with one replica it is no transaction when the server is killed.
            for count, message in enumerate(messages, start=1):
                if message.payload == last.data:
                    self._sequence = sequence
                    return count
        if sequence == self._sequence:
            # Nobody else wrote: an earlier copy of this event is on its way through the cluster.
            return 0
        if first_of_fresh:
            raise AlreadyExists(f"{self._subject} already has events")
        holder = last.headers.get(MESSAGE_ID, "") if last is not None else ""
        if not self._owner and generation_and_ordinal(holder)[0] < self._writer.generation:
            # The old owner stored one more event before this first one, which will fence it.
            self._sequence = sequence
            return 0
        raise Fenced(f"{self._subject} was taken over by {holder or 'an unknown writer'}")


@asynccontextmanager
async def journal(
    connection: Connection, blobs: BlobStore, writer: Writer, *, fresh: bool, timeout: float
) -> AsyncGenerator[JetStreamJournal]:
    """A writer's journal; the end of the context flushes it.

    Raises:
        Fenced: A writer of this generation or a higher one owns the subject already.
        Unavailable: NATS did not answer within `timeout` seconds.
    """
    sequence = 0
    if not fresh:
        subject = event_subject(writer.tenant, writer.execution_id, writer.agent_id)
        last = await last_message(connection, EVENTS, subject, timeout=timeout)
        if last is not None:
            sequence = last.sequence
            generation, _ = generation_and_ordinal(last.headers.get(MESSAGE_ID, ""))
            if generation >= writer.generation:
                raise Fenced(f"{subject} belongs to generation {generation}")
    opened = JetStreamJournal(connection, blobs, writer, fresh=fresh, timeout=timeout, sequence=sequence)
    try:
        try:
            yield opened
        except BaseException:
            try:
                if opened.open:
                    await opened.flush()
            except FleetError as fault:
                # What ended the context matters more than what could not be written.
                _log.warning(
                    "journal.not_flushed", execution_id=writer.execution_id, agent_id=writer.agent_id, reason=str(fault)
                )
            raise
        await opened.flush()
    finally:
        await opened.close()


async def tell(
    connection: Connection, blobs: BlobStore, writer: Writer, body: EventBody, *, timeout: float
) -> StoredEvent:
    """Append one event to a subject with several writers, after its last event.

    Raises:
        ResourceExhausted: There is no room.
        Unavailable: NATS did not answer within `timeout` seconds.
    """
    subject = event_subject(writer.tenant, writer.execution_id, writer.agent_id)
    backoff = Backoff.lasting(timeout)
    sent: dict[bytes, Event] = {}
    at = datetime.now(UTC).isoformat()
    while True:
        last = await last_message(connection, EVENTS, subject, timeout=timeout)
        if last is not None and last.data in sent:
            return StoredEvent(sequence=last.sequence, event=sent[last.data])
        _, ordinal = generation_and_ordinal(last.headers.get(MESSAGE_ID, "")) if last is not None else (0, 0)
        event = writer.event(body, ordinal=ordinal + 1, at=at)
        payload, headers = await outgoing(event, to_json(event), blobs)
        headers[EXPECTED_SEQUENCE] = str(last.sequence if last else 0)
        sent[payload] = event
        try:
            ack = await connection.publish(subject, payload, headers=headers, timeout=None, backoff=backoff)
        except PublishRefused as refusal:
            await backoff.wait(refusal)
        else:
            return StoredEvent(sequence=ack.sequence, event=event)


def _copied(fault: FleetError) -> FleetError:
    return type(fault)(fault.message, field=fault.field, hint=fault.hint)


async def publish_result(
    connection: Connection,
    *,
    tenant: str,
    task_id: str,
    execution_id: str,
    agent_id: str,
    payload: bytes,
    stamp: Mapping[str, str],
    timeout: float,
) -> bool:
    """Publish a result once; False when it is already published. Raises ResourceExhausted, Unavailable.

    An orchestrator publishes a host's result: a permission for the default tenant's result subjects would include
    other tenants'.
    """
    if connection.is_host:
        content = base64.b64encode(payload).decode()
        document = {"task_id": task_id, "agent_id": agent_id, "payload": content, "headers": dict(stamp)}
        return bool((await ask(connection, Ask.RESULT, tenant, execution_id, document))["published"])
    subject = result_subject(tenant, task_id, agent_id)
    headers = {MESSAGE_ID: f"{subject}/{execution_id}", EXECUTION_HEADER: execution_id, **stamp}
    backoff = Backoff.lasting(timeout)
    unanswered = 0
    while True:
        last = await last_message(connection, RESULTS, subject, timeout=timeout)
        if last is not None and await _has_result(connection, last, execution_id, timeout=timeout):
            # After a publish without an answer, the stored result is this call's own.
            return unanswered > 0
        headers[EXPECTED_SEQUENCE] = str(last.sequence if last is not None else 0)
        try:
            ack = await connection.publish(subject, payload, headers=headers, timeout=None, backoff=backoff)
        except PublishRefused as refusal:
            unanswered += refusal.unanswered
            await backoff.wait(refusal)
        else:
            return not ack.duplicate or unanswered + ack.unanswered > 0


async def _has_result(connection: Connection, last: StoredMessage, execution_id: str, *, timeout: float) -> bool:
    """Whether an execution's result is on the subject of `last`, its newest message, which may be a later attempt's."""
    if last.headers.get(EXECUTION_HEADER) == execution_id:
        return True
    async with aclosing(messages(connection, RESULTS, last.subject, follow=False, timeout=timeout)) as stored:
        async for message in stored:
            if message is not None and message.headers.get(EXECUTION_HEADER) == execution_id:
                return True
    return False
