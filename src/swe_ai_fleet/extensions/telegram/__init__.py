"""Chats by Telegram: a bot that asks for messages, has them answered and sends the answers."""

from swe_ai_fleet.extensions import Extension, entry

EXTENSION = Extension(
    buckets={"TELEGRAM": "fleet"},
    commands={
        "telegram": entry(
            "extensions.telegram.commands:telegram",
            "Serve Telegram chats (FLEET_TELEGRAM_TOKEN, FLEET_TELEGRAM_CHATS) over a running fleet, until Ctrl-C.",
            "FLEET_TELEGRAM_TOKEN=… FLEET_TELEGRAM_CHATS=42 fleet telegram",
        ),
    },
)
