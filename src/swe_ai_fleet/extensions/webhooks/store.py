"""Stores of webhooks, which every replica follows, and of their deliveries.

Of deliveries, the last attempts of each webhook are stored, and the progress of failed ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self

import structlog

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced, FleetError, NotFound, ResourceExhausted
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.extensions.webhooks.webhook import EventType, Webhook, check_id, key_in
from swe_ai_fleet.following import Follower, rewritten
from swe_ai_fleet.ports import KeyValue, KeyValueChange, KeyValueEntry

WEBHOOKS_BUCKET = "agent-webhooks"
MAX_WEBHOOKS = 100
CONSUMER_PREFIX = "webhook-"
_DOT = "="
"""Replaces a dot in the names of consumers, where dots are not allowed."""

_log = structlog.get_logger(__name__)
DELIVERIES_BUCKET = "agent-webhook-deliveries"
DELIVERIES_KEPT_SECONDS = 7 * 86_400.0
"""After the last attempt."""
MAX_ATTEMPTS_KEPT = 50


class WebhookStore:
    """Stores webhooks, and follows changes that other replicas make. An async context.

    Args:
        changed: Called when the webhooks of `all` have changed.
    """

    def __init__(
        self,
        store: KeyValue,
        *,
        changed: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._changed = changed
        self._now = now
        self._known: dict[str, Webhook] = {}
        self._follower = Follower(
            "the bucket of webhooks",
            lambda revision: store.changes(from_revision=revision, follow=True),
            self._take,
            hint="restart the orchestrator",
        )

    async def __aenter__(self) -> Self:
        """Read the stored webhooks. Raises Unavailable."""
        await self._follower.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._follower.stop()

    def all(self) -> tuple[Webhook, ...]:
        """The webhooks that this replica has read, ordered by their ids."""
        return tuple(self._known[key] for key in sorted(self._known))

    def of_consumer(self, consumer: str) -> Webhook | None:
        """The webhook of a consumer, as this replica has read it."""
        return next((webhook for webhook in self._known.values() if webhook.consumer == consumer), None)

    async def get(self, webhook_id: str, tenant: str = DEFAULT_TENANT) -> Webhook:
        """A tenant's webhook as stored now. Raises NotFound, InvalidRequest, Unavailable."""
        check_id(webhook_id)
        key = key_in(tenant, webhook_id)
        entry = await self._store.get(key)
        webhook = _loaded(key, entry.value) if entry else None
        if webhook is None:
            raise NotFound(f"there is no webhook {webhook_id}", field="webhook_id", hint="see `fleet webhooks list`")
        return webhook

    async def list(self, tenant: str = DEFAULT_TENANT) -> tuple[Webhook, ...]:
        """A tenant's stored webhooks, ordered by their ids. Raises Unavailable."""
        webhooks = [_loaded(entry.key, entry.value) for entry in await self._store.entries()]
        return tuple(webhook for webhook in webhooks if webhook is not None and webhook.tenant == tenant)

    async def orphans(self, consumers: Sequence[str]) -> tuple[str, ...]:
        """Those consumers whose webhooks are deleted, disabled or recreated. Raises Unavailable."""
        stored = {entry.key: _loaded(entry.key, entry.value) for entry in await self._store.entries()}
        orphans: list[str] = []
        for name in consumers:
            key = name.removeprefix(CONSUMER_PREFIX).rpartition("-")[0].replace(_DOT, ".")
            webhook = stored.get(key)
            # An unreadable webhook may come from a newer version: its consumer must stay.
            unreadable = key in stored and webhook is None
            alive = webhook is not None and webhook.active and webhook.consumer == name
            if name.startswith(CONSUMER_PREFIX) and not unreadable and not alive:
                orphans.append(name)
        return tuple(orphans)

    async def add(self, webhook: Webhook, *, start_sequence: int, same_secret: bool) -> tuple[Webhook, bool]:
        """Store a webhook that gets events from `start_sequence` on; returns it, and whether it existed before.

        With `same_secret`, another secret makes another webhook. Raises AlreadyExists for a different webhook with
        that id, ResourceExhausted, Unavailable.
        """
        prefix = "" if webhook.tenant == DEFAULT_TENANT else webhook.tenant
        keys = [entry.key for entry in await self._store.entries() if entry.key.rpartition(".")[0] == prefix]
        if len(keys) >= MAX_WEBHOOKS and webhook.key not in keys:
            raise ResourceExhausted(f"there are {len(keys)} webhooks, the limit", hint="delete one first")
        webhook_added = replace(
            webhook,
            created_at=self._at(),
            consumer=_consumer(webhook.key),
            start_sequence=start_sequence,
        )
        try:
            await self._store.put(webhook.key, to_json(webhook_added), revision=0)
        except Fenced:
            existing = await self.get(webhook.webhook_id, webhook.tenant)
            if _content(existing, secret=same_secret) != _content(webhook_added, secret=same_secret):
                raise AlreadyExists(
                    f"a webhook {webhook.webhook_id} already exists",
                    field="webhook_id",
                    hint="delete it first, or choose another id",
                ) from None
            return existing, True
        return webhook_added, False

    async def remove(self, webhook_id: str, tenant: str = DEFAULT_TENANT) -> Webhook | None:
        """Delete a tenant's webhook; returns it, None where there was none. Raises InvalidRequest, Unavailable."""
        try:
            webhook = await self.get(webhook_id, tenant)
        except NotFound:
            return None
        await self._store.delete(webhook.key)
        return webhook

    async def disable(self, webhook: Webhook, reason: str) -> None:
        """Send it no more events. Raises Unavailable."""
        await self._change(
            webhook,
            lambda old: replace(old, disabled_reason=reason, disabled_at=self._at()) if old.active else old,
        )

    async def enable(self, webhook: Webhook, *, start_sequence: int) -> None:
        """Send it events again, from `start_sequence` on. Raises Unavailable."""

        def enabled(current: Webhook) -> Webhook:
            if current.active:
                return current
            return replace(
                current,
                disabled_reason="",
                disabled_at="",
                dead_letters=0,
                last_error="",
                consumer=_consumer(current.key),
                start_sequence=start_sequence,
            )

        await self._change(webhook, enabled)

    async def given_up(self, webhook: Webhook, error: str) -> None:
        """Count an event that could not be delivered. Raises Unavailable."""
        await self._change(webhook, lambda old: replace(old, dead_letters=old.dead_letters + 1, last_error=error))

    async def delivered(self, webhook: Webhook) -> None:
        """Reset that count. Raises Unavailable."""
        await self._change(webhook, lambda old: replace(old, dead_letters=0, last_error=""))

    async def _change(self, webhook: Webhook, change: Callable[[Webhook], Webhook]) -> None:
        """Change the stored webhook, unless it has been deleted or recreated."""

        def changed(entry: KeyValueEntry | None) -> bytes | None:
            current = _loaded(webhook.key, entry.value) if entry else None
            if current is None or current.consumer != webhook.consumer or (new := change(current)) == current:
                return None
            return to_json(new)

        await rewritten(self._store, webhook.key, changed, name=webhook.webhook_id)

    def _take(self, change: KeyValueChange) -> int:
        webhook = _loaded(change.key, change.value) if change.value is not None else None
        if webhook is None:
            self._known.pop(change.key, None)
        else:
            self._known[change.key] = webhook
        self._changed()
        return change.revision

    def _at(self) -> str:
        return self._now().isoformat(timespec="milliseconds")


def _loaded(key: str, value: bytes) -> Webhook | None:
    try:
        return from_json(Webhook, value)
    except ValueError:
        # An unreadable webhook must not hide the others; the fault is not logged, since it may contain the secret.
        _log.error("webhooks.unreadable", webhook=key)
        return None


def _content(webhook: Webhook, *, secret: bool) -> tuple[object, ...]:
    """The fields that two webhooks with the same id must share."""
    content = (webhook.url, sorted(webhook.events), webhook.format, webhook.filter)
    return (*content, webhook.secret) if secret else content


def _consumer(key: str) -> str:
    """A new consumer name, so that it does not inherit the position of a deleted consumer."""
    return f"{CONSUMER_PREFIX}{key.replace('.', _DOT)}-{secrets.token_hex(4)}"


class DeliveryStatus(StrEnum):
    """The result of an attempt: accepted; failed, with a retry; failed for the last time."""

    DELIVERED = "delivered"
    RETRYING = "retrying"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAttempt:
    """One attempt to deliver. `sequence` is the event's number in the log, 0 for a test; `number` counts from 1.

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
    """A delivery that failed `attempts` times; `next_at` is the earliest time of its next attempt."""

    attempts: int
    next_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredAttempts:
    attempts: tuple[DeliveryAttempt, ...] = ()


class DeliveryStore:
    """Stores attempts in a bucket whose entries expire."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    async def last(self, webhook: Webhook) -> tuple[DeliveryAttempt, ...]:
        """The last attempts, the newest first. Raises Unavailable."""
        entry = await self._store.get(_list_key(webhook))
        return tuple(reversed(_stored_attempts(entry.value).attempts)) if entry else ()

    async def was_delivered(self, webhook: Webhook, sequence: int) -> bool:
        """Whether a delivery of an event is in the list. Raises Unavailable."""
        attempts = await self.last(webhook)
        return any(attempt.sequence == sequence and attempt.status is DeliveryStatus.DELIVERED for attempt in attempts)

    async def pending(self, webhook: Webhook, sequence: int) -> Pending | None:
        """The progress of a failed delivery; None where it never failed. Raises Unavailable."""
        entry = await self._store.get(_pending_key(webhook, sequence))
        return from_json(Pending, entry.value) if entry else None

    async def failed(self, webhook: Webhook, sequence: int, pending: Pending) -> None:
        """Store the progress of a failed delivery. Raises Unavailable."""
        await self._store.put(_pending_key(webhook, sequence), to_json(pending))

    async def settled(self, webhook: Webhook, sequence: int) -> None:
        """Delete the progress of a delivery. Raises Unavailable."""
        await self._store.delete(_pending_key(webhook, sequence))

    async def note(self, webhook: Webhook, attempt: DeliveryAttempt) -> None:
        """Add an attempt to the list; a failure to do so is only logged."""

        def longer(entry: KeyValueEntry | None) -> bytes:
            listed = _stored_attempts(entry.value) if entry else _StoredAttempts()
            return to_json(replace(listed, attempts=(*listed.attempts, attempt)[-MAX_ATTEMPTS_KEPT:]))

        try:
            await rewritten(self._store, _list_key(webhook), longer, name="the list of deliveries")
        except FleetError as fault:
            # The message has been sent: failing now would send it again.
            _log.warning("webhooks.attempt_not_listed", webhook=webhook.webhook_id, reason=fault.message)

    async def forget(self, webhook: Webhook) -> None:
        """Delete the list of a webhook. Raises Unavailable."""
        await self._store.delete(_list_key(webhook))


def _stored_attempts(value: bytes) -> _StoredAttempts:
    try:
        return from_json(_StoredAttempts, value)
    except ValueError:
        return _StoredAttempts()


def _list_key(webhook: Webhook) -> str:
    return f"list.{webhook.key}"


def _pending_key(webhook: Webhook, sequence: int) -> str:
    return f"pending.{webhook.consumer}.{sequence}"
