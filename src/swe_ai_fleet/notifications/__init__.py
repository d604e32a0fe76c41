"""What happens to executions, told outside: webhooks, signed and retried; and how receivers check them."""

from swe_ai_fleet.notifications.webhook import InvalidSignature, verify

__all__ = ["InvalidSignature", "verify"]
