"""Where an answer is read."""

from __future__ import annotations

from enum import StrEnum


class Channel(StrEnum):
    """Where an answer is read: a terminal, something that shows Markdown, a Telegram chat."""

    PLAIN = "plain"
    MARKDOWN = "markdown"
    TELEGRAM = "telegram"
