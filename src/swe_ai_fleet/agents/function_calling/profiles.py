"""The limits of one run, by what it is for."""

from __future__ import annotations

from swe_ai_fleet.domain.budget import Limits

_NONE = 1_000_000
_A_DAY = 24 * 3600.0

FUNCTION_CALLING = Limits(max_iterations=10, max_tool_calls=_NONE, timeout_seconds=_A_DAY)
"""Of `FunctionCallingAgent`: iterations alone, and each tool has a time limit of its own."""

CHAT = Limits(max_iterations=5, max_tool_calls=20, timeout_seconds=60.0)
"""Of a planner or a chat, where somebody waits for the answer."""
