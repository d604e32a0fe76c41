"""Webhooks that notify other systems of executions, signed and retried, and the check of their signatures."""

from swe_ai_fleet.extensions import Extension
from swe_ai_fleet.extensions.webhooks.webhook import InvalidSignature, verify

__all__ = ["EXTENSION", "InvalidSignature", "verify"]

EXTENSION = Extension(services="service:open_service", commands="commands:COMMANDS")
