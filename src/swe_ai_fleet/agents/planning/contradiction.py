"""Whether what a step gave agrees with what the plan expected of it."""

from __future__ import annotations

import re

from swe_ai_fleet.domain.plan import PlanStep
from swe_ai_fleet.domain.tool import ToolResult

_EXIT = re.compile(r"exit(?: code)?[ :=]{0,3}(\d{1,3})", re.IGNORECASE)
_MOST_CHARS = 300


def contradicts(step: PlanStep, result: ToolResult) -> str:
    """What speaks against the plan, empty where nothing does.

    A failed call does, and a missing expectation: `exit N` is held against the exit code (a call without one counts
    as 0 or 1), any other text must stand in the result literally. An expected exit code other than 0 is no failure.
    Of a result that was cut, what is not in it cannot be told.
    """
    exit_code = _EXIT.fullmatch(step.expect.strip())
    if exit_code is not None:
        code = result.exit_code if result.exit_code is not None else int(not result.success)
        return "" if code == int(exit_code[1]) else f"expected {exit_code[0]}, it was {code}. {_said(result)}".rstrip()
    if not result.success:
        return _said(result)
    if step.expect and step.expect not in result.content and not result.truncated:
        return f"its result does not show {step.expect[:_MOST_CHARS]!r}"
    return ""


def _said(result: ToolResult) -> str:
    return "" if result.success else " ".join((result.error or str(result.outcome))[:_MOST_CHARS].split())
