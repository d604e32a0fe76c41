"""Notifications as chats show them.

Titles and names are ours; values are a stranger's words. Each stands on one line as inline code, in which no chat sees
marks, links or mentions, and every `@` in it is followed by a blank of no width, for receivers that look for mentions
by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swe_ai_fleet.conversations.formatting import TELEGRAM_UNITS, units
from swe_ai_fleet.conversations.formatting.document import Kind
from swe_ai_fleet.conversations.formatting.inline import Span
from swe_ai_fleet.conversations.formatting.marks import Mark
from swe_ai_fleet.conversations.formatting.telegram import MarkdownV2
from swe_ai_fleet.domain.text import plain_line
from swe_ai_fleet.notifications.notification import Notification

SLACK_CHARS = 3_000
DISCORD_UNITS = 2_000
_VALUE_CHARS = (500, 250, 120, 60, 30)
"""Of each value, as many as leave the message within its limit."""
_ZERO_WIDTH = "\u200b"
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def slack(notification: Notification) -> Mapping[str, object]:
    """What incoming webhooks of Slack take: `&`, `<` and `>` are the characters that it wants escaped."""

    def line(name: str, value: str) -> str:
        return f"*{name}:* `{value.replace('`', chr(39)).translate(_SLACK)}`"

    text = _fitted(notification, f"*{notification.title}*", line, SLACK_CHARS)
    return {"text": text}


def discord(notification: Notification) -> Mapping[str, object]:
    """What webhooks of Discord take; it is told that nobody is mentioned, whatever the text says."""

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
