"""Calls of the database tool, and what they are refused with."""

from __future__ import annotations

from collections.abc import Awaitable

from swe_ai_fleet.domain.tool import Decision, Outcome, ToolResult
from swe_ai_fleet.tools import DatabaseTool

SECRET = "pass+w/rd-of-agent"

QUOTED = "pass%2Bw%2Frd-of-agent"


async def ok(call: Awaitable[ToolResult]) -> ToolResult:
    result = await call
    assert result.success, result.observation()
    return result


# What errors say where a rule forbade the call, whether ours or one that the database keeps for us.
FORBIDDEN = (
    "is refused here", "may write", "too powerful", "read-only transaction", "permission denied", "may not do that",
    "for reading only", "outside the paths", "is denied", "leads outside", "lies in .git", "is a fifo",
)  # fmt: skip


async def refused(call: Awaitable[ToolResult], *said: str) -> ToolResult:
    result = await call
    assert not result.success, result.content
    assert (result.outcome is Outcome.REFUSED) == any(words in result.error for words in FORBIDDEN), result
    for text in said:
        assert text in result.error, result.error
    return result


def recorded(tool: DatabaseTool, result: ToolResult) -> None:
    """The call's end stands in the audit as the caller was told: ours to refuse, or the database's to fail."""
    entry = tool.pipeline.trail.entries[-1]
    decision = Decision.REFUSED if result.outcome is Outcome.REFUSED else Decision.ALLOWED
    assert (f"db_{entry.operation}", entry.outcome, entry.decision) == (result.operation, result.outcome, decision)
