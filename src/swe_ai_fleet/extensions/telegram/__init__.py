"""Chats by Telegram: a bot that asks for messages, has them answered and sends the answers."""

from swe_ai_fleet.extensions import Extension

EXTENSION = Extension(commands="commands:COMMANDS")
