"""Test runs as candidates speak of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import Trajectory


def last_tests(trajectory: Trajectory) -> TestSummary | None:
    """The summary of the run's last test operation, None if there was none."""
    for step in reversed(trajectory.steps):
        for seen in reversed(step.observations):
            summary = test_summary(seen.result)
            if summary is not None:
                return summary
    return None


def test_summary(result: ToolResult) -> TestSummary | None:
    """The test run a tool result speaks of, None if it speaks of none."""
    tests = result.metadata.get("tests")
    if not isinstance(tests, dict):
        return None
    counts = cast("Mapping[str, object]", tests)
    failing = cast("list[Mapping[str, object]]", counts.get("failing", []))
    return TestSummary(
        passed=_count(counts, "passed"),
        failed=_count(counts, "failed"),
        errors=_count(counts, "errors"),
        skipped=_count(counts, "skipped"),
        duration_ms=_count(counts, "duration_ms"),
        failing=tuple(str(failure.get("id", "")) for failure in failing),
    )


def _count(counts: Mapping[str, object], name: str) -> int:
    value = counts.get(name, 0)
    return value if isinstance(value, int) else 0
