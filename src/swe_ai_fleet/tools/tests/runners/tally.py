"""Counting tests while a report is read; what is kept of them is bounded however long the report is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.tools.tests.reports import FailingTest, TestReport, failing_test

End = Literal["passed", "failure", "error", "skipped"]

MAX_FAILING = 1_000
"""Failing tests kept with their message; more are counted only."""


class Tally:
    """Takes one test after the other and gives a report. Tests of the same id stay apart."""

    def __init__(self) -> None:
        self._counts: dict[End, int] = {"passed": 0, "failure": 0, "error": 0, "skipped": 0}
        self._failing: dict[str, FailingTest] = {}
        self._named: dict[str, int] = {}

    def add(self, identifier: str, end: End, message: str = "", traceback: str = "") -> None:
        """One test and how it ended."""
        self._counts[end] += 1
        if end not in ("failure", "error") or len(self._failing) >= MAX_FAILING:
            return
        test = failing_test(identifier or "(no name)", message, traceback)
        self._named[test.id] = number = self._named.get(test.id, 0) + 1
        name = test.id if number == 1 else f"{test.id} ({number})"
        self._failing[name] = FailingTest(id=name, message=test.message, traceback=test.traceback)

    def count(self, end: End, number: int) -> None:
        """Tests of which no more is known than how they ended."""
        self._counts[end] += max(0, number)

    @property
    def failing(self) -> int:
        """How many failed or could not run so far."""
        return self._counts["failure"] + self._counts["error"]

    def report(self, seconds: float = 0.0) -> TestReport:
        """What was counted; `seconds` is how long the run took."""
        return TestReport(
            summary=TestSummary(
                passed=self._counts["passed"],
                failed=self._counts["failure"],
                errors=self._counts["error"],
                skipped=self._counts["skipped"],
                duration_ms=round(min(max(seconds, 0.0), 1e7) * 1000),
                failing=tuple(self._failing),
            ),
            failing=tuple(self._failing.values()),
        )


def merged(reports: Iterable[TestReport]) -> TestReport | None:
    """Several reports of one run as one; None where there are none."""
    found = list(reports)
    if len(found) <= 1:
        return found[0] if found else None
    failing = tuple(test for report in found for test in report.failing)[:MAX_FAILING]
    return TestReport(
        summary=TestSummary(
            passed=sum(report.summary.passed for report in found),
            failed=sum(report.summary.failed for report in found),
            errors=sum(report.summary.errors for report in found),
            skipped=sum(report.summary.skipped for report in found),
            duration_ms=sum(report.summary.duration_ms for report in found),
            failing=tuple(test.id for test in failing),
        ),
        failing=failing,
    )
