"""Test runs: how each test of a suite ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.candidate import TestSummary


class TestOutcome(StrEnum):
    """How a test ended. `error`: it could not run (collection, set-up, a crash, a hang)."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"

    @property
    def bad(self) -> bool:
        return self in (TestOutcome.FAILED, TestOutcome.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """One test's end. Message and traceback are untrusted text, cut to size, empty for a test that passed."""

    __test__ = False

    outcome: TestOutcome
    duration_ms: int = 0
    message: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """One run of a test suite.

    Attributes:
        framework: `pytest`, `unittest`, `go`, `cargo`, `jest`, …; empty for a command that is none of the known ones.
        command: The command as a person would type it.
        results: The tests by id, in the order in which they ended. A file that cannot be collected is an error under
            its own path.
        unnamed: Tests that the runner only counted.
        exit_code: The runner's own; None where it was killed.
        stopped: Why the run did not get to its end; empty where it did.
        hung: Tests that were killed because their time was up.
        crashed: Tests that took the runner's process down.
        notes: What had to be changed for the run to work, in words.
        output: What was printed, head and tail.
    """

    __test__ = False

    framework: str = ""
    command: str = ""
    results: Mapping[str, TestResult] = field(default_factory=dict[str, TestResult])
    unnamed: TestSummary = field(default_factory=TestSummary)
    exit_code: int | None = None
    duration_ms: int = 0
    stopped: str = ""
    hung: tuple[str, ...] = ()
    crashed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    output: str = ""

    def of(self, *outcomes: TestOutcome) -> list[str]:
        """The ids of the tests that ended in one of these ways."""
        return [name for name, result in self.results.items() if result.outcome in outcomes]

    @property
    def passing(self) -> list[str]:
        return self.of(TestOutcome.PASSED)

    @property
    def failing(self) -> list[str]:
        """The ids of the tests that failed or could not run."""
        return self.of(TestOutcome.FAILED, TestOutcome.ERROR)

    @property
    def summary(self) -> TestSummary:
        """The run in numbers."""
        return TestSummary(
            passed=len(self.passing) + self.unnamed.passed,
            failed=len(self.of(TestOutcome.FAILED)) + self.unnamed.failed,
            errors=len(self.of(TestOutcome.ERROR)) + self.unnamed.errors,
            skipped=len(self.of(TestOutcome.SKIPPED)) + self.unnamed.skipped,
            duration_ms=self.duration_ms,
            failing=tuple(self.failing),
        )

    @property
    def ran(self) -> int:
        """How many tests were run to an end: passed, failed, or could not run."""
        summary = self.summary
        return summary.passed + summary.failed + summary.errors

    @property
    def reported(self) -> bool:
        """Whether anything is known about any test."""
        return bool(self.results) or self.ran + self.unnamed.skipped > 0

    @property
    def green(self) -> bool:
        """Whether the run got to its end, at least one test passed, and nothing failed."""
        clean = not self.stopped and self.exit_code == 0 and self.summary.passed > 0
        return clean and not self.failing and not self.unnamed.failed and not self.unnamed.errors

    def only(self, names: Collection[str]) -> Mapping[str, TestResult]:
        """The results of some tests."""
        return {name: result for name, result in self.results.items() if name in names}
