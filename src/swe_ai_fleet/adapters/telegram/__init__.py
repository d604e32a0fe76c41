"""Chats by Telegram: a bot that asks for messages, has them answered and sends the answers."""

from swe_ai_fleet.adapters.telegram.api import BotApi, Refused, Update
from swe_ai_fleet.adapters.telegram.bot import TELEGRAM_BUCKET, Answers, TelegramBot

__all__ = ["TELEGRAM_BUCKET", "Answers", "BotApi", "Refused", "TelegramBot", "Update"]
