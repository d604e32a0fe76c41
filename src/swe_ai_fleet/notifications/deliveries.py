"""What was sent to webhooks: the last attempts of each, and how far failed deliveries have come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import structlog

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.notifications.webhook import EventType, Webhook
from swe_ai_fleet.ports import KeyValue, KeyValueEntry
from swe_ai_fleet.rewriting import rewritten

DELIVERIES_BUCKET = "agent-webhook-deliveries"
DELIVERIES_KEPT_SECONDS = 7 * 86_400.0
"""After the last attempt."""
MAX_ATTEMPTS_KEPT = 50

_log = structlog.get_logger(__name__)


class DeliveryStatus(StrEnum):
    """How an attempt went: taken; failed, and tried again; failed for the last time."""

    DELIVERED = "delivered"
    RETRYING = "retrying"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt to deliver. `sequence` is the event's place in the log, 0 for a test; `number` counts from 1.

    `error` is untrusted text. Times are ISO 8601, UTC.
    """

    sequence: int
    event_id: str
    type: EventType
    status: DeliveryStatus
    number: int
    at: str
    execution_id: str = ""
    http_status: int = 0
    error: str = ""
    duration_ms: int = 0
    next_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A delivery that failed `attempts` times, and is not to be tried before `next_at`."""

    attempts: int
    next_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    attempts: tuple[Attempt, ...] = ()


class DeliveryBook:
    """Keeps attempts in a store that forgets them after a while.

    Args:
        store: Where they are kept.
    """

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    async def last(self, webhook: Webhook) -> tuple[Attempt, ...]:
        """The last attempts, the newest first. Raises Unavailable."""
        entry = await self._store.get(_list_key(webhook))
        return tuple(reversed(_kept(entry.value).attempts)) if entry else ()

    async def taken(self, webhook: Webhook, sequence: int) -> bool:
        """Whether an event is known to have been delivered. Raises Unavailable."""
        attempts = await self.last(webhook)
        return any(one.sequence == sequence and one.status is DeliveryStatus.DELIVERED for one in attempts)

    async def pending(self, webhook: Webhook, sequence: int) -> Pending | None:
        """How far the delivery of an event has come; None where it never failed. Raises Unavailable."""
        entry = await self._store.get(_pending_key(webhook, sequence))
        return from_json(Pending, entry.value) if entry else None

    async def failed(self, webhook: Webhook, sequence: int, pending: Pending) -> None:
        """Remember that an attempt failed. Raises Unavailable."""
        await self._store.put(_pending_key(webhook, sequence), to_json(pending))

    async def settled(self, webhook: Webhook, sequence: int) -> None:
        """Forget how far a delivery had come. Raises Unavailable."""
        await self._store.delete(_pending_key(webhook, sequence))

    async def note(self, webhook: Webhook, attempt: Attempt) -> None:
        """Put an attempt on the list. Where that cannot be done, it is missing there, which is logged."""

        def longer(entry: KeyValueEntry | None) -> bytes:
            kept = _kept(entry.value) if entry else _Kept()
            return to_json(replace(kept, attempts=(*kept.attempts, attempt)[-MAX_ATTEMPTS_KEPT:]))

        try:
            await rewritten(self._store, _list_key(webhook), longer, name="the list of deliveries")
        except FleetError as fault:
            # What was sent is sent: to fail now would send it again.
            _log.warning("webhooks.attempt_not_listed", webhook=webhook.webhook_id, reason=fault.message)

    async def forget(self, webhook: Webhook) -> None:
        """Forget the list of a webhook. Raises Unavailable."""
        await self._store.delete(_list_key(webhook))


def _kept(value: bytes) -> _Kept:
    try:
        return from_json(_Kept, value)
    except ValueError:
        return _Kept()


def _list_key(webhook: Webhook) -> str:
    return f"list.{webhook.key}"


def _pending_key(webhook: Webhook, sequence: int) -> str:
    return f"pending.{webhook.consumer}.{sequence}"
