"""Answers as a channel takes them: plain text, Markdown, Telegram's MarkdownV2; with data tables, in pages."""

from swe_ai_fleet.conversations.formatting.channel import Channel
from swe_ai_fleet.conversations.formatting.pages import TELEGRAM_UNITS, pages, rendered, units
from swe_ai_fleet.conversations.formatting.tables import Table

__all__ = ["TELEGRAM_UNITS", "Channel", "Table", "pages", "rendered", "units"]
