"""Notifications to webhooks: each webhook has its own durable consumer on the event log, which all replicas share.

So a receiver that is down delays no other, its events are delivered afterwards, and an event is acknowledged only when
its receiver accepted it or it is a dead letter.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from swe_ai_fleet.adapters.jetstream import JetStream, PermanentError, RetryAfter, WorkMessage, WorkQueue
from swe_ai_fleet.adapters.jetstream.protocol import EVENTS, event_of, token
from swe_ai_fleet.domain.errors import FleetError, NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import CONTROL_SUBJECT, EXECUTION_SUBJECT, StoredEvent
from swe_ai_fleet.extensions.webhooks.notification import Notification, notification_of, trial, type_of, wants
from swe_ai_fleet.extensions.webhooks.sender import ReceiverResponse, Schedule, WebhookRules, WebhookSender, message
from swe_ai_fleet.extensions.webhooks.store import DeliveryAttempt, DeliveryStatus, DeliveryStore, Pending, WebhookStore
from swe_ai_fleet.extensions.webhooks.webhook import Webhook
from swe_ai_fleet.following import in_background
from swe_ai_fleet.ports import SecretMask

CONCURRENCY = 4
MAX_UNSETTLED = 10_000
"""Events of one webhook that wait for a retry; further ones wait in the log."""
GONE = "the receiver answered 410 Gone"
_EARLY_SECONDS = 0.5
_UNKNOWN_SECONDS = 5.0
_MARKS = tuple(
    f'"{name}"'.encode()
    for name in ("execution_started", "execution_finished", "approval_awaited", "approval_resolved", "body_ref")
)

_log = structlog.get_logger(__name__)


def queue_of(webhook: Webhook) -> WorkQueue:
    """The consumer that holds a webhook's position in the log."""
    executions = f"agent.events.{token(webhook.tenant)}.*"
    return WorkQueue(
        stream=EVENTS,
        subjects=(f"{executions}.{EXECUTION_SUBJECT}", f"{executions}.{CONTROL_SUBJECT}"),
        consumer=webhook.consumer,
        # Attempts are counted in the delivery store; this bounds failures of this process.
        max_deliveries=50,
        # Messages of a killed process are redelivered after this time.
        ack_wait_seconds=10.0,
        concurrency=CONCURRENCY,
        start_sequence=webhook.start_sequence,
        max_unsettled=MAX_UNSETTLED,
        marks=_MARKS,
    )


@dataclass(frozen=True, kw_only=True)
class WebhookNotifier:
    """Sends notifications to webhooks.

    Attributes:
        chance: A number from 0 to 1.
        tls: The trusted authorities of receivers; None: the usual public ones.
    """

    log: JetStream
    webhooks: WebhookStore
    deliveries: DeliveryStore
    rules: WebhookRules
    mask: SecretMask
    schedule: Schedule = field(default_factory=Schedule)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    chance: Callable[[], float] = random.random
    tls: ssl.SSLContext | None = None

    def sender(self) -> WebhookSender:
        """A sender for one receiver; the caller closes it."""
        return WebhookSender(self.rules, now=self.now, tls=self.tls)

    async def attempt(
        self, webhook: Webhook, notification: Notification, sender: WebhookSender, *, number: int, sequence: int
    ) -> tuple[ReceiverResponse, DeliveryAttempt]:
        """Notify a webhook once, and record the attempt. `number` counts from 1, `sequence` is 0 for a test."""
        at = self.now()
        sent = message(webhook, notification, int(at.timestamp()))
        reply = await sender.send(sent, secrets=(webhook.secret,))
        ended = self.now()
        last = reply.gone or not sequence
        wait = None if reply.delivered or last else self.schedule.wait(number, reply, self.chance)
        failed = DeliveryStatus.DEAD if wait is None else DeliveryStatus.RETRYING
        attempt_made = DeliveryAttempt(
            sequence=sequence,
            event_id=notification.event_id,
            type=notification.type,
            status=DeliveryStatus.DELIVERED if reply.delivered else failed,
            number=number,
            at=at.isoformat(),
            execution_id=notification.execution_id,
            http_status=reply.http_status,
            error=reply.error,
            duration_ms=round((ended - at).total_seconds() * 1000),
            next_at="" if wait is None else (ended + timedelta(seconds=wait)).isoformat(),
        )
        if attempt_made.status is DeliveryStatus.RETRYING:
            # Recorded first, since this process may end at any time: the number of attempts must survive.
            await self.deliveries.failed(webhook, sequence, Pending(attempts=number, next_at=attempt_made.next_at))
        await self.deliveries.note(webhook, attempt_made)
        return reply, attempt_made

    async def test(self, webhook: Webhook) -> tuple[DeliveryAttempt, bool]:
        """Send a test message once.

        Returns the delivery, and whether it enabled a disabled webhook. Raises Unavailable.
        """
        sender = self.sender()
        try:
            notification = trial(webhook, name=uuid.uuid4().hex, at=self.now().isoformat())
            reply, delivery = await self.attempt(webhook, notification, sender, number=1, sequence=0)
        finally:
            await sender.close()
        enabled = reply.delivered and not webhook.active
        if enabled:
            await self.webhooks.enable(webhook, start_sequence=await self.log.last_sequence() + 1)
        return delivery, enabled


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Handles the messages of one webhook's consumer."""

    notifier: WebhookNotifier
    consumer: str
    sender: WebhookSender

    async def handle(self, work: WorkMessage) -> None:
        """Notify the webhook, if it subscribes to the event.

        Raises RetryAfter for a failure that is retried, PermanentError for one that is not, FleetError for faults of
        the infrastructure.
        """
        notifier, webhook = self.notifier, self.notifier.webhooks.of_consumer(self.consumer)
        if webhook is None or not webhook.active:
            # The webhook was deleted or recreated: the follower of the store ends this listener too.
            raise RetryAfter(_UNKNOWN_SECONDS)
        notification = await self._notification(webhook, work)
        if notification is None or not wants(webhook, notification):
            return
        number = await self._number(webhook, work)
        if not number:
            return
        reply, delivery = await notifier.attempt(
            webhook, notification, self.sender, number=number, sequence=work.sequence
        )
        if delivery.status is DeliveryStatus.RETRYING:
            raise RetryAfter(self._until(delivery.next_at))
        # The count of a dead letter is kept: if the dead letter got lost, all attempts would start again.
        if reply.delivered:
            if number > 1:
                await notifier.deliveries.settled(webhook, work.sequence)
            if webhook.dead_letters:
                await notifier.webhooks.delivered(webhook)
            return
        if reply.gone:
            await notifier.webhooks.disable(webhook, GONE)
            _log.warning("webhooks.disabled", webhook=webhook.webhook_id, reason=GONE)
        else:
            await notifier.webhooks.given_up(webhook, reply.error)
        raise PermanentError(f"webhook {webhook.webhook_id} was tried {number} times; last error: {reply.error}")

    async def _notification(self, webhook: Webhook, work: WorkMessage) -> Notification | None:
        log = self.notifier.log
        try:
            event = await event_of(work.data, log)
            if type_of(event.body) not in webhook.events:
                return None
            return await notification_of(StoredEvent(sequence=work.sequence, event=event), log, self.notifier.mask)
        except (ValueError, NotFound, PreconditionFailed) as fault:
            raise PermanentError(f"the event cannot be read: {str(fault)[:300]}") from fault

    async def _number(self, webhook: Webhook, work: WorkMessage) -> int:
        """The number of this attempt; 0 for a delivered message. Raises RetryAfter where it is too early."""
        if work.deliveries == 1:
            return 1
        # A redelivery is not an attempt: a process may have ended in between, or the server restarted.
        if await self.notifier.deliveries.was_delivered(webhook, work.sequence):
            return 0
        pending = await self.notifier.deliveries.pending(webhook, work.sequence)
        if pending is not None:
            if (left := self._until(pending.next_at)) > _EARLY_SECONDS:
                raise RetryAfter(left)
            return pending.attempts + 1
        return 1

    def _until(self, at: str) -> float:
        return max(0.0, (datetime.fromisoformat(at) - self.notifier.now()).total_seconds())


@asynccontextmanager
async def open_listeners(notifier: WebhookNotifier, changed: asyncio.Event) -> AsyncGenerator[asyncio.Task[None]]:
    """Consume events for every webhook of the store until the context ends; `changed` is set when webhooks change.

    Yields the consuming task; if it ends early, it has failed, and the fault is logged. Raises Unavailable.
    """
    for orphan in await notifier.webhooks.orphans(await notifier.log.consumers(EVENTS)):
        # The process that was to remove this consumer ended before.
        await notifier.log.remove_consumer(EVENTS, orphan)
    running = _run_listeners(notifier, changed)
    async with in_background(running, name="webhooks", fault="webhook notifications have stopped") as (task,):
        yield task


async def _run_listeners(notifier: WebhookNotifier, changed: asyncio.Event) -> None:
    listening: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            changed.clear()
            wanted = {webhook.consumer: webhook for webhook in notifier.webhooks.all() if webhook.active}
            for consumer in [name for name in listening if name not in wanted]:
                await _cancel([listening.pop(consumer)])
                await _remove_consumer(notifier.log, consumer)
            for consumer, webhook in wanted.items():
                if consumer not in listening:
                    listening[consumer] = asyncio.create_task(_consume(notifier, webhook), name=consumer)
            await changed.wait()
    finally:
        await _cancel(list(listening.values()))


async def _consume(notifier: WebhookNotifier, webhook: Webhook) -> None:
    sender = notifier.sender()
    listener = Listener(notifier=notifier, consumer=webhook.consumer, sender=sender)
    try:
        await notifier.log.consume(queue_of(webhook), listener.handle)
    except Exception:
        # Nothing else would report it: no task awaits this one.
        _log.exception("notifications of a webhook have stopped", webhook=webhook.webhook_id)
        raise
    finally:
        await sender.close()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _remove_consumer(log: JetStream, consumer: str) -> None:
    try:
        await log.remove_consumer(EVENTS, consumer)
    except FleetError as fault:
        # The next process to start removes consumers without a webhook.
        _log.warning("webhooks.consumer_left", consumer=consumer, reason=fault.message)
