"""Answers in the format of a channel: plain text, Markdown, Telegram's MarkdownV2; with data tables, in pages."""

from swe_ai_fleet.conversations.document import Table
from swe_ai_fleet.conversations.pages import TELEGRAM_UNITS, Channel, pages, rendered, units

__all__ = ["TELEGRAM_UNITS", "Channel", "Table", "pages", "rendered", "units"]
