"""Chats with the fleet: by its gRPC service, on the command line, in a program (`ChatSession`), by Telegram.

`chat` accepts messages, `drive` answers them, `session` stores the conversation; `swe_ai_fleet.conversations`, which
webhooks use too, renders answers in the format of a channel.
"""

from typing import TYPE_CHECKING, Any

from swe_ai_fleet.extension_registry import Extension, entry

if TYPE_CHECKING:
    from swe_ai_fleet.extensions.chat.library import ChatSession

__all__ = ["EXTENSION", "ChatSession"]

EXTENSION = Extension(
    buckets={"TELEGRAM": "fleet"},
    task_buckets={"CHATS": 0},
    services="service:open_service",
    exports=("ChatSession",),
    commands={
        "chat": entry(
            "extensions.chat.commands:chat",
            "Talk with the fleet: ask about executions, files and pages, have tasks proposed, started after your yes.",
            "fleet chat",
            "fleet chat --session morning --once 'What failed last night?'",
        ),
        "telegram": entry(
            "extensions.chat.telegram.commands:telegram",
            "Serve Telegram chats (FLEET_TELEGRAM_TOKEN, FLEET_TELEGRAM_CHATS) over a running fleet, until Ctrl-C.",
            "FLEET_TELEGRAM_TOKEN=… FLEET_TELEGRAM_CHATS=42 fleet telegram",
        ),
    },
)


def __getattr__(name: str) -> Any:
    # The command line imports every extension; only programs need `ChatSession`.
    if name != "ChatSession":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from swe_ai_fleet.extensions.chat.library import ChatSession

    return ChatSession
