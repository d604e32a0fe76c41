"""What happens to executions, told outside: webhooks, signed and retried; and how receivers check them."""

from swe_ai_fleet.extensions import Extension
from swe_ai_fleet.extensions.webhooks.webhook import InvalidSignature, verify

__all__ = ["EXTENSION", "InvalidSignature", "verify"]

EXTENSION = Extension(services="service:open_service", commands="commands:COMMANDS")
