"""A webhook: its URL, events, filter and secret; signatures of messages.

Signatures are those of the Standard Webhooks specification (1.0.0) in its symmetric form: HMAC-SHA256 of
`<id>.<timestamp>.<body>`; the secret is `whsec_` and its bytes in base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qs, urlsplit

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Role
from swe_ai_fleet.domain.text import check_length

PREFIX = "whsec_"
ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
LEAST_KEY_BYTES = 24
MOST_KEY_BYTES = 64
_NEW_KEY_BYTES = 32
_MAX_SIGNATURES = 16


class InvalidSignature(Exception):
    """A message is not signed with the secret, or too old; the text says which."""


def new_secret() -> str:
    """A random secret of 32 bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_NEW_KEY_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The bytes of a secret. Raises InvalidRequest for a malformed one."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not LEAST_KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        raise InvalidRequest(
            "this is not a webhook secret",
            field="secret",
            hint=f"{PREFIX} and {LEAST_KEY_BYTES} to {MOST_KEY_BYTES} bytes in base64; leave it out for a random one",
        )
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the base64 of the signature; `timestamp` is in seconds since the epoch."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def signed_headers(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a message. Raises InvalidRequest for a malformed secret."""
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: signature(key_of(secret), message_id, timestamp, body),
    }


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    tolerance_seconds: float = 300,
    *,
    now: float | None = None,
) -> str:
    """Verify a message; returns its id, which is the same in every delivery of an event.

    Args:
        secret: The webhook's secret, `whsec_…`.
        headers: The request's headers; names in upper or lower case.
        body: The request's body, unchanged.
        tolerance_seconds: The largest difference between the message's time and now, either way.
        now: Seconds since the epoch; None: this machine's clock.

    Raises:
        InvalidSignature: The message is not genuine.
        InvalidRequest: The secret is malformed.
    """
    key = key_of(secret)
    values = {name.lower(): value for name, value in headers.items()}
    message_id, sent_at, signed = (values.get(name, "") for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER))
    if not (message_id and sent_at and signed):
        raise InvalidSignature("a header is missing: webhook-id, webhook-timestamp or webhook-signature")
    if not (sent_at.isascii() and sent_at.isdecimal() and len(sent_at) <= 12):
        raise InvalidSignature("webhook-timestamp must be a number of seconds")
    timestamp = int(sent_at)
    if abs((time.time() if now is None else now) - timestamp) > tolerance_seconds:
        raise InvalidSignature("the message is too old, or the clocks differ")
    expected = signature(key, message_id, timestamp, body).encode()
    # During a change of secrets there is one for each; some may be of other signature versions.
    signatures = signed.encode("utf-8", "replace").split(b" ", _MAX_SIGNATURES)[:_MAX_SIGNATURES]
    if not any(hmac.compare_digest(candidate, expected) for candidate in signatures):
        raise InvalidSignature("no signature matches the body and the secret")
    return message_id


MAX_PREFIX_CHARS = 128
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class EventType(StrEnum):
    """Types of the events that webhooks get."""

    EXECUTION_STARTED = "execution.started"
    EXECUTION_FINISHED = "execution.finished"
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_RESOLVED = "approval.resolved"
    TEST = "webhook.test"


SUBSCRIBABLE = (
    EventType.EXECUTION_STARTED,
    EventType.EXECUTION_FINISHED,
    EventType.APPROVAL_REQUESTED,
    EventType.APPROVAL_RESOLVED,
)
USUAL = SUBSCRIBABLE[1:]
"""The events of a webhook without `events`."""


class Format(StrEnum):
    """The format of a message: an event in JSON, or its text for a chat."""

    JSON = "json"
    SLACK = "slack"
    DISCORD = "discord"
    TELEGRAM = "telegram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which executions match; an empty field matches all.

    `statuses` are final statuses of executions. Without `include_parts`, executions that belong to another one are left
    out, except for their approvals.
    """

    task_id_prefix: str = ""
    roles: tuple[Role, ...] = ()
    statuses: tuple[ExecutionStatus, ...] = ()
    include_parts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A receiver. `url` and `secret` are for sending only: people are shown `shown_url`.

    `consumer` names the consumer that holds its position in the event log, from `start_sequence` on. With a
    `disabled_reason` nothing is sent. `dead_letters` counts failures since the last delivery. Times are ISO 8601, UTC.
    """

    webhook_id: str
    url: str = field(repr=False)
    secret: str = field(repr=False)
    events: tuple[EventType, ...] = USUAL
    format: Format = Format.JSON
    filter: Filter = field(default_factory=Filter)
    tenant: str = DEFAULT_TENANT
    created_at: str = ""
    consumer: str = ""
    start_sequence: int = 0
    disabled_reason: str = ""
    disabled_at: str = ""
    dead_letters: int = 0
    last_error: str = ""

    @property
    def key(self) -> str:
        """Its key in the store."""
        return key_in(self.tenant, self.webhook_id)

    @property
    def active(self) -> bool:
        """Whether events are sent to it."""
        return not self.disabled_reason

    @property
    def shown_url(self) -> str:
        """The URL without parts that may be secret: the path of a chat's URL, the query of others."""
        parts = urlsplit(self.url)
        if self.format is not Format.JSON:
            return f"{parts.scheme}://{parts.netloc}/…"
        return f"{parts.scheme}://{parts.netloc}{parts.path}{'?…' if parts.query else ''}"

    @property
    def chat_id(self) -> str:
        """The chat that a Telegram bot writes to; empty where the URL names none."""
        try:
            query = urlsplit(self.url).query
        except ValueError:
            return ""
        return (parse_qs(query).get("chat_id") or [""])[0]


def default_id(tenant: str, url: str, events: tuple[EventType, ...]) -> str:
    """The id of a webhook without an id of the caller's: the same for the same URL and events."""
    identity = "\n".join((tenant, url, *sorted(events)))
    return f"wh-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def key_in(tenant: str, webhook_id: str) -> str:
    """The store key of a tenant's webhook, unique across tenants; in the default tenant it is the id."""
    return webhook_id if tenant == DEFAULT_TENANT else f"{tenant}.{webhook_id}"


def check_id(webhook_id: str) -> None:
    """Raises InvalidRequest for an invalid webhook id."""
    if not _ID.fullmatch(webhook_id):
        raise InvalidRequest(
            f"{webhook_id[:80]!r} is not a valid webhook id",
            field="webhook_id",
            hint="1 to 64 of A-Z a-z 0-9 _ -, the first a letter or digit",
        )


def check_webhook(webhook: Webhook) -> None:
    """Refuse an invalid webhook; its URL's host is not checked. Raises InvalidRequest naming the field."""
    check_id(webhook.webhook_id)
    key_of(webhook.secret)
    if not webhook.events or EventType.TEST in webhook.events:
        raise InvalidRequest("no events given", field="events", hint=f"some of {', '.join(SUBSCRIBABLE)}")
    check_length(webhook.filter.task_id_prefix, MAX_PREFIX_CHARS, field="filter.task_id_prefix")
    unended = [status for status in webhook.filter.statuses if not status.terminal]
    if unended:
        raise InvalidRequest(
            f"no execution ends with status {unended[0]}",
            field="filter.statuses",
            hint="one of " + ", ".join(status for status in ExecutionStatus if status.terminal),
        )
    if webhook.format is Format.TELEGRAM and not webhook.chat_id:
        raise InvalidRequest(
            "the URL has no chat",
            field="url",
            hint="https://api.telegram.org/bot<token>/sendMessage?chat_id=<id>",
        )


def parse_event(text: str, *, field: str) -> EventType:
    """A subscribable event by its name. Raises InvalidRequest."""
    for event in SUBSCRIBABLE:
        if event == text:
            return event
    raise InvalidRequest(f"there is no event {text[:80]!r}", field=field, hint=f"one of {', '.join(SUBSCRIBABLE)}")
