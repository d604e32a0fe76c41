"""Webhooks that notify other systems of executions, signed and retried, and the check of their signatures."""

from typing import TYPE_CHECKING, Any

from swe_ai_fleet.extension_registry import Extension, entry

if TYPE_CHECKING:
    from swe_ai_fleet.extensions.webhooks.webhook import InvalidSignature, verify

__all__ = ["EXTENSION", "InvalidSignature", "verify"]

EXTENSION = Extension(
    buckets={"agent-webhooks": "followed"},
    services="service:open_service",
    groups={"webhooks": "Notifications about executions to other systems."},
    commands={
        "webhooks add": entry(
            "extensions.webhooks.commands",
            "Notify a URL of events from now on. The secret that signs the messages is shown only once.",
            "fleet webhooks add https://ci.example.org/hooks/fleet --event execution.finished",
        ),
        "webhooks list": entry("extensions.webhooks.commands", "Show all webhooks.", "fleet webhooks list"),
        "webhooks remove": entry(
            "extensions.webhooks.commands",
            "Delete a webhook; its pending notifications are not sent.",
            "fleet webhooks remove ci",
        ),
        "webhooks test": entry(
            "extensions.webhooks.commands",
            "Send a test message; exit code 1 if it is refused. A disabled webhook that accepts it is enabled again.",
            "fleet webhooks test ci",
        ),
        "webhooks deliveries": entry(
            "extensions.webhooks.commands",
            "Show the last deliveries to a webhook, the newest first.",
            "fleet webhooks deliveries ci --limit 50",
        ),
    },
)


def __getattr__(name: str) -> Any:
    # The command line imports every extension; only receivers need these names.
    if name not in ("InvalidSignature", "verify"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from swe_ai_fleet.extensions.webhooks import webhook

    return getattr(webhook, name)
