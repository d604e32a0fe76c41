"""Counting tests while a report is read; what is kept of them is bounded however long the report is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.tools.tests.reports import bounded, test_result

End = Literal["passed", "failure", "error", "skipped"]

MAX_NAMED = 100_000
"""Tests kept by name; more are counted only."""
_OUTCOMES = {
    "passed": TestOutcome.PASSED,
    "failure": TestOutcome.FAILED,
    "error": TestOutcome.ERROR,
    "skipped": TestOutcome.SKIPPED,
}


class Tally:
    """Takes one test after the other and gives a run. Tests of the same id stay apart."""

    def __init__(self) -> None:
        self._counts: dict[End, int] = {"passed": 0, "failure": 0, "error": 0, "skipped": 0}
        self._results: dict[str, TestResult] = {}
        self._named: dict[str, int] = {}
        self.failing = 0
        """How many failed or could not run so far."""

    def add(self, identifier: str, end: End, message: str = "", traceback: str = "", seconds: float = 0.0) -> None:
        """One test and how it ended."""
        self.failing += end in ("failure", "error")
        if len(self._results) >= MAX_NAMED:
            self._counts[end] += 1
            return
        name = bounded(identifier or "(no name)")
        self._named[name] = number = self._named.get(name, 0) + 1
        milliseconds = round(min(max(seconds, 0.0), 1e7) * 1000)
        self._results[name if number == 1 else f"{name} ({number})"] = test_result(
            _OUTCOMES[end], message, traceback, milliseconds
        )

    def count(self, end: End, number: int) -> None:
        """Tests of which no more is known than how they ended."""
        self._counts[end] += max(0, number)
        self.failing += max(0, number) if end in ("failure", "error") else 0

    def report(self, seconds: float = 0.0) -> TestRun:
        """What was counted; `seconds` is how long the run took."""
        return TestRun(
            results=self._results,
            unnamed=TestSummary(
                passed=self._counts["passed"],
                failed=self._counts["failure"],
                errors=self._counts["error"],
                skipped=self._counts["skipped"],
            ),
            duration_ms=round(min(max(seconds, 0.0), 1e7) * 1000),
        )


def merged(reports: Iterable[TestRun]) -> TestRun | None:
    """Several reports of one run as one, tests of the same id kept apart; None where there are none."""
    found = list(reports)
    if len(found) <= 1:
        return found[0] if found else None
    results: dict[str, TestResult] = {}
    named: dict[str, int] = {}
    for report in found:
        for name, result in report.results.items():
            named[name] = number = named.get(name, 0) + 1
            results[name if number == 1 else f"{name} ({number})"] = result
    return TestRun(
        results=results,
        unnamed=TestSummary(
            passed=sum(report.unnamed.passed for report in found),
            failed=sum(report.unnamed.failed for report in found),
            errors=sum(report.unnamed.errors for report in found),
            skipped=sum(report.unnamed.skipped for report in found),
        ),
        duration_ms=sum(report.duration_ms for report in found),
    )
