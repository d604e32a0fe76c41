"""How an operation says that it did not do what it was asked."""

from __future__ import annotations

from swe_ai_fleet.domain.errors import FleetError


class ToolFailure(FleetError):
    """An operation could not do what it was asked; the message is for the model and says what would work."""


class ToolRefusal(ToolFailure):
    """An operation must not do what it was asked (a path outside, a host not granted); audited as refused."""


class ToolTimeout(ToolFailure):
    """An operation's own time limit ran out; audited as timed out."""
