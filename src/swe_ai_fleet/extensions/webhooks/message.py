"""The HTTP request of a notification: its body in the receiver's format, its headers signed.

In a chat message, titles and names are ours; values are untrusted text. Each value is one line of inline code, in which
no chat renders markup, links or mentions; a zero-width space follows every `@` in it, for receivers that look for
mentions themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.conversations import TELEGRAM_UNITS, units
from swe_ai_fleet.conversations.document import Kind
from swe_ai_fleet.conversations.inline import Mark, Span
from swe_ai_fleet.conversations.pages import MarkdownV2
from swe_ai_fleet.domain.text import plain_line
from swe_ai_fleet.extensions.webhooks.notification import Notification
from swe_ai_fleet.extensions.webhooks.webhook import Format, Webhook, signed_headers

SLACK_CHARS = 3_000
DISCORD_UNITS = 2_000
_VALUE_CHARS = (500, 250, 120, 60, 30)
"""Of each value, as many as leave the message within its limit."""
_ZERO_WIDTH = "\u200b"
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
USER_AGENT = "swe-ai-fleet-webhooks/1"
MAX_BODY_BYTES = 64 * 1024


def slack(notification: Notification) -> Mapping[str, object]:
    """What incoming webhooks of Slack take: `&`, `<` and `>` are the characters that it wants escaped."""

    def line(name: str, value: str) -> str:
        return f"*{name}:* `{value.replace('`', chr(39)).translate(_SLACK)}`"

    text = _fitted(notification, f"*{notification.title}*", line, SLACK_CHARS)
    return {"text": text}


def discord(notification: Notification) -> Mapping[str, object]:
    """What webhooks of Discord take; mentions are switched off, whatever the text says."""

    def line(name: str, value: str) -> str:
        return f"**{name}:** `{value.replace('`', chr(39))}`"

    text = _fitted(notification, f"**{notification.title}**", line, DISCORD_UNITS)
    return {"content": text, "allowed_mentions": {"parse": []}}


def telegram(notification: Notification, chat_id: str) -> Mapping[str, object]:
    """What `sendMessage` of Telegram's Bot API takes."""
    dialect = MarkdownV2()

    def written(*spans: Span) -> str:
        return dialect.line(spans, Kind.TEXT)

    def line(name: str, value: str) -> str:
        return written(
            Span(text=f"{name}:", marks=frozenset({Mark.BOLD})),
            Span(text=" "),
            Span(text=value, marks=frozenset({Mark.CODE})),
        )

    title = written(Span(text=notification.title, marks=frozenset({Mark.BOLD})))
    text = _fitted(notification, title, line, TELEGRAM_UNITS)
    return {
        "chat_id": chat_id,
        "text": text,
        "parse_mode": "MarkdownV2",
        "link_preview_options": {"is_disabled": True},
    }


def _fitted(notification: Notification, title: str, line: Callable[[str, str], str], limit: int) -> str:
    text = title
    for most in _VALUE_CHARS:
        facts = [(name, _value(value, most)) for name, value in notification.facts]
        text = "\n".join([title, *(line(name, value) for name, value in facts if value)])
        if units(text) <= limit:
            break
    return text


def _value(text: str, limit: int) -> str:
    return plain_line(text, limit).replace("@", f"@{_ZERO_WIDTH}")


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
        # Every text of a notification is cut to size, so only a bug gets here.
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
