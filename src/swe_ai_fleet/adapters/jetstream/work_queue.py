"""Work queues that several processes share: no message is lost, and none is retried for ever.

All replicas pull from one durable consumer. A message stays reserved while it is handled and is acknowledged
afterwards. A failed one is redelivered later; one that can never succeed, or has failed too often, goes to
`agent.dlq.<consumer>`. A message may be handled more than once (an acknowledgement can get lost), so handlers must be
idempotent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass

import structlog
from nats.aio.subscription import Subscription

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import (
    MESSAGE_ID,
    NANOSECONDS,
    ApiFault,
    Backoff,
    NatsMessage,
    Unanswered,
    dead_letter_subject,
)
from swe_ai_fleet.adapters.jetstream.reader import ConsumerBroken, DeliveryPosition, make_consumer, next_message, pull
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, ModelUnavailable, ResourceExhausted, Unavailable

_ACKNOWLEDGING_SECONDS = 1.0
"""Timeout of one acknowledgement; a server that has just started may lose the first."""
_REASON_CHARS = 1_000
_ACK = b"+ACK"
_AT_WORK = b"+WPI"
_AGAIN = b"-NAK"
_NEVER = b"+TERM"
_PASSING = (Unavailable, ModelUnavailable, ResourceExhausted)
"""Faults of the fleet's services rather than of the message."""

_log = structlog.get_logger(__name__)


class PermanentError(Exception):
    """Raised by a handler: this message can never be handled, for the reason given. It is dead-lettered."""


class RetryAfter(Exception):
    """Raised by a handler: this message is to be redelivered after `seconds`, however often that happens."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"in {seconds:g} seconds")
        self.seconds = seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueue:
    """A durable consumer and how it treats its messages.

    Args:
        stream: The stream of the messages; on a work queue acknowledged ones are deleted, on others they stay.
        subjects: The subjects that this consumer takes; on a work queue no other consumer may take the same.
        consumer: Its durable name, the same in every replica; dead letters go to `agent.dlq.<consumer>`.
        max_deliveries: A failing message becomes a dead letter after so many deliveries. Failures because the fleet is
            full or unreachable are retried without a limit.
        ack_wait_seconds: A message of a process that stopped answering goes to another one after so long.
        first_delay_seconds: The delay before the first redelivery of a failed message; doubled each time.
        last_delay_seconds: The longest such delay.
        start_sequence: The first sequence to take, fixed once the consumer is created; 0: all.
        max_unsettled: The most messages being handled or awaiting redelivery; more stay in the stream.
        marks: Messages that contain none of these are acknowledged unhandled.
    """

    stream: str
    subjects: tuple[str, ...]
    consumer: str
    max_deliveries: int = 5
    ack_wait_seconds: float = 30.0
    concurrency: int = 8
    first_delay_seconds: float = 2.0
    last_delay_seconds: float = 60.0
    start_sequence: int = 0
    max_unsettled: int = 1_000
    marks: tuple[bytes, ...] = (b"",)

    def delay(self, deliveries: int) -> float:
        """Seconds until a message that was delivered so often is redelivered."""
        return min(self.last_delay_seconds, self.first_delay_seconds * 2.0 ** min(deliveries - 1, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkMessage:
    """A message to handle. `sequence` is its position in the stream, `deliveries` counts from 1."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    deliveries: int

    @classmethod
    def of(cls, message: NatsMessage) -> WorkMessage:
        position = DeliveryPosition.of(message.reply)
        return cls(
            subject=message.subject,
            data=message.data,
            headers=message.headers or {},
            sequence=position.stream,
            deliveries=position.deliveries,
        )


Handler = Callable[[WorkMessage], Awaitable[None]]
"""Handles one message. Returning acknowledges it; PermanentError dead-letters it at once, RetryAfter and any
other fault have it delivered again later."""


Room = Callable[[], Awaitable[int]]
"""Waits until the process has room for work of a queue; returns for how many messages."""


class Consumer:
    """Handles the messages of a queue, however often the server goes away.

    A cancellation cancels the messages being handled and releases them to the other replicas at once. `shared` limits
    how many messages are pulled: several queues of a process can share it.
    """

    def __init__(self, connection: Connection, queue: WorkQueue, handler: Handler, shared: Room | None) -> None:
        self._shared = shared
        self._connection = connection
        self._queue = queue
        self._handler = handler
        self._busy = 0
        self._freed = asyncio.Event()
        self._resume_at = 0.0

    async def run(self) -> None:
        backoff = Backoff.lasting(None)
        async with asyncio.TaskGroup() as handling:
            while True:
                try:
                    async with aclosing(self._messages()) as messages:
                        async for message in messages:
                            backoff = Backoff.lasting(None)
                            self._busy += 1
                            handling.create_task(self._handle(message), name=f"{self._queue.consumer} {message.reply}")
                except (ConsumerBroken, Unanswered) as reason:
                    _log.debug("nats.pull_replaced", consumer=self._queue.consumer, reason=str(reason))
                    await backoff.wait(reason)
                except ApiFault as fault:
                    _log.error("nats.no_consumer", consumer=self._queue.consumer, reason=str(fault))
                    await backoff.wait(fault)

    async def _messages(self) -> AsyncGenerator[NatsMessage]:
        """Messages of one subscription, pulled as there is room. Raises ConsumerBroken, Unanswered, ApiFault."""
        received: asyncio.Queue[NatsMessage | None] = asyncio.Queue()
        inbox = self._connection.inbox()
        subscription: Subscription | None = None
        try:
            subscription = await self._connection.subscribe(inbox, received.put_nowait)
            await self._create()
            remaining = 0
            while True:
                if not remaining:
                    remaining = await self._room()
                    await pull(self._connection, self._queue.stream, self._queue.consumer, remaining, inbox)
                message = await next_message(received)
                if message is None:
                    remaining = 0
                    continue
                remaining -= 1
                if any(mark in message.data for mark in self._queue.marks):
                    yield message
                else:
                    # Should this get lost, the message is redelivered.
                    await self._connection.send(message.reply, _ACK)
        finally:
            if subscription is not None:
                await self._connection.unsubscribe(subscription)
            # Received but unhandled messages go to the other replicas at once, not after `ack_wait_seconds`.
            while not received.empty():
                unhandled = received.get_nowait()
                if unhandled is not None and not unhandled.status:
                    with suppress(Unanswered):
                        await self._connection.send(unhandled.reply, _AGAIN)

    async def _create(self) -> None:
        """Create the consumer, or update the existing one to the settings."""
        queue = self._queue
        start: dict[str, object] = {"deliver_policy": "all"}
        if queue.start_sequence:
            start = {"deliver_policy": "by_start_sequence", "opt_start_seq": queue.start_sequence}
        config: dict[str, object] = {
            **start,
            "durable_name": queue.consumer,
            "name": queue.consumer,
            "ack_policy": "explicit",
            "ack_wait": int(queue.ack_wait_seconds * NANOSECONDS),
            # Deliveries are limited here: the server would drop a message silently.
            "max_deliver": -1,
            "max_ack_pending": queue.max_unsettled,
            "filter_subjects": list(queue.subjects),
        }
        await make_consumer(self._connection, queue.stream, config)

    async def _room(self) -> int:
        """Wait until there is room for another message; returns for how many."""
        while self._busy >= self._queue.concurrency:
            self._freed.clear()
            await self._freed.wait()
        pause = self._resume_at - asyncio.get_running_loop().time()
        if pause > 0:
            await asyncio.sleep(pause)
        room = self._queue.concurrency - self._busy
        return room if self._shared is None else min(room, max(1, await self._shared()))

    async def _handle(self, message: NatsMessage) -> None:
        # A task suffices for the progress signals: no agent runs in this loop, so nothing blocks it.
        progress_signals = asyncio.create_task(self._signal_progress(message.reply))
        try:
            answer = await self._answer(WorkMessage.of(message))
            await self._settle(message.reply, answer)
        except asyncio.CancelledError:
            with suppress(Unanswered):
                await self._connection.send(message.reply, _AGAIN)
            raise
        finally:
            progress_signals.cancel()
            self._busy -= 1
            self._freed.set()

    async def _answer(self, work: WorkMessage) -> bytes:
        """Call the handler; returns the answer for the server: acknowledged, again later, or never."""
        queue = self._queue
        try:
            await self._handler(work)
        except PermanentError as fault:
            return await self._dead_letter(work, str(fault))
        except RetryAfter as fault:
            return _redeliver_after(fault.seconds)
        except _PASSING as fault:
            # The next message would fail as well.
            delay = queue.delay(work.deliveries)
            self._resume_at = asyncio.get_running_loop().time() + min(delay, queue.delay(3))
            _log.info("work.postponed", consumer=queue.consumer, sequence=work.sequence, reason=str(fault))
            return _redeliver_after(delay)
        except FleetError as fault:
            _log.warning("work.failed", consumer=queue.consumer, sequence=work.sequence, reason=str(fault))
            reason = str(fault)
        except Exception as fault:  # noqa: BLE001 - the edge of the process
            _log.exception("work.fault_of_ours", consumer=queue.consumer, sequence=work.sequence)
            reason = f"internal error ({type(fault).__name__}); see the log"
        else:
            return _ACK
        if work.deliveries >= queue.max_deliveries:
            return await self._dead_letter(work, f"failed {work.deliveries} times; last error: {reason}")
        return _redeliver_after(queue.delay(work.deliveries))

    async def _dead_letter(self, work: WorkMessage, reason: str) -> bytes:
        """Publish a message, as it is and with the reason in its headers, to the dead letters of its consumer."""
        queue = self._queue
        headers = {
            MESSAGE_ID: f"{queue.stream}/{queue.consumer}/{work.sequence}",
            "Fleet-Reason": _one_line(reason),
            "Fleet-Subject": work.subject,
            "Fleet-Stream": queue.stream,
            "Fleet-Sequence": str(work.sequence),
            "Fleet-Deliveries": str(work.deliveries),
        }
        subject = dead_letter_subject(queue.consumer)
        timeout = queue.ack_wait_seconds
        try:
            try:
                await self._connection.publish(subject, work.data, headers=headers, timeout=timeout)
            except InvalidRequest:
                # With the headers it exceeds the largest message.
                headers["Fleet-Omitted-Bytes"] = str(len(work.data))
                await self._connection.publish(subject, b"", headers=headers, timeout=timeout)
        except FleetError as fault:
            _log.error("work.dead_letter_refused", consumer=queue.consumer, sequence=work.sequence, reason=str(fault))
            return _redeliver_after(queue.last_delay_seconds)
        _log.warning("work.dead_letter", consumer=queue.consumer, sequence=work.sequence, reason=reason)
        return _NEVER

    async def _signal_progress(self, reply: str) -> None:
        """Extend the reservation of a message until cancelled."""
        while True:
            await asyncio.sleep(self._queue.ack_wait_seconds / 3)
            with suppress(Unanswered):
                await self._connection.send(reply, _AT_WORK)

    async def _settle(self, reply: str, answer: bytes) -> None:
        """Send the server the outcome of a message; if that fails for too long, the message is redelivered."""
        backoff = Backoff.lasting(self._queue.ack_wait_seconds)
        with suppress(Unavailable):
            await self._connection.request_until_answered(reply, answer, backoff, seconds=_ACKNOWLEDGING_SECONDS)


def _redeliver_after(seconds: float) -> bytes:
    return _AGAIN + b" " + json.dumps({"delay": int(seconds * NANOSECONDS)}).encode()


def _one_line(text: str) -> str:
    """Untrusted text as the value of a header: ASCII without line breaks, cut."""
    plain = "".join(character if character.isprintable() else " " for character in text[:_REASON_CHARS])
    return plain.encode("ascii", "backslashreplace").decode()
