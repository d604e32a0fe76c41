"""The request that tells a receiver: its body in the receiver's format, its headers signed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.notifications.formats import discord, slack, telegram
from swe_ai_fleet.notifications.notification import Notification
from swe_ai_fleet.notifications.signing import signed_headers
from swe_ai_fleet.notifications.webhook import Format, Webhook

USER_AGENT = "swe-ai-fleet-webhooks/1"
MAX_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A POST request; the URL may be a secret."""

    url: str = field(repr=False)
    headers: Mapping[str, str]
    body: bytes


def message(webhook: Webhook, notification: Notification, timestamp: int) -> Outgoing:
    """What is sent at `timestamp` (seconds since the epoch). The body is the same in every attempt."""
    body = json.dumps(_content(webhook, notification), ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) > MAX_BODY_BYTES:
        # What is told is cut to size, each text of it; this is for a bug.
        raise RuntimeError(f"a notification of {len(body)} bytes")
    headers = {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        # A connection that waits for the next event may be dead by then.
        "Connection": "close",
    }
    return Outgoing(
        url=webhook.url,
        headers=headers | signed_headers(webhook.secret, notification.event_id, timestamp, body),
        body=body,
    )


def _content(webhook: Webhook, notification: Notification) -> Mapping[str, object]:
    match webhook.format:
        case Format.JSON:
            return {"type": notification.type.value, "timestamp": notification.at, "data": dict(notification.data)}
        case Format.SLACK:
            return slack(notification)
        case Format.DISCORD:
            return discord(notification)
        case Format.TELEGRAM:
            return telegram(notification, webhook.chat_id)
