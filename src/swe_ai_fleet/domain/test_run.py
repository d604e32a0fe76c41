"""Test runs: how each test of a suite ended; and the baseline: the test results of the untouched commit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.environment import EnvironmentReport
from swe_ai_fleet.domain.text import first_names


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
        framework: `pytest`, `unittest`, `go`, `cargo`, `jest`, …; empty for any other command.
        command: The command as a person would type it.
        results: The tests by id, in the order in which they ended. A file that cannot be collected is an error under
            its own path.
        unnamed: Tests that the runner only counted.
        exit_code: The runner's own; None where it was killed.
        stopped: Why the run did not finish; empty where it did.
        hung: Tests that were killed at their time limit.
        crashed: Tests that crashed the runner's process.
        notes: What had to be changed for the run to work, in words.
        output: Head and tail of the output.
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
        """How many tests passed, failed, or could not run."""
        summary = self.summary
        return summary.passed + summary.failed + summary.errors

    @property
    def reported(self) -> bool:
        """Whether the run says anything about any test."""
        return bool(self.results) or self.ran + self.unnamed.skipped > 0

    @property
    def green(self) -> bool:
        """Whether the run finished, at least one test passed, and none failed."""
        clean = not self.stopped and self.exit_code == 0 and self.summary.passed > 0
        return clean and not self.failing and not self.unnamed.failed and not self.unnamed.errors


NO_TESTS = "it has no test"
_LACKING_SHARE = 0.1
"""From this share of tests that fail because something is missing, an environment run is worth it."""
_LACKS = re.compile(
    r"No module named|fixture '[^']{1,100}' not found|Cannot find (?:module|package)|command not found"
    r"|No such file or directory|cannot open shared object"
    r"|unresolved import|can't find crate|cannot find package|no required module provides"
)
"""Messages of tests with an incomplete environment; a name missing in a module is the project's own fault."""
_ERROR = re.compile(r"\berror\b|[a-z]Error\b|\bcannot find\b|\bnot found\b", re.I)
_MAX_TESTS = 100
_REASON_CHARS = 300
_OUTPUT_CHARS = 3_000
_PYTEST_NOTHING_COLLECTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFailure:
    """A test that fails on another author's source. The message is untrusted text.

    `unchanged`: it fails in the same way on the untouched source.
    """

    test: str
    message: str = ""
    unchanged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """One set of tests on the source of one other candidate.

    `unsaid` are tests without a meaningful result there: they use a name that only their author's source defines, or
    something in their environment is missing. `note` says why nothing ran.
    """

    candidate_id: str
    passed: tuple[str, ...] = ()
    failed: tuple[ForeignFailure, ...] = ()
    unsaid: tuple[str, ...] = ()
    note: str = ""

    @property
    def cell(self) -> str:
        """The crossing in a few characters: `2/3` passed, `?` where no test has a result."""
        total = len(self.passed) + len(self.failed)
        return f"{len(self.passed)}/{total}" if total else "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteBaseline:
    """One test command, or a check of the caller's, on the untouched commit.

    Attributes:
        command: The command as a person would type it.
        tests: Numbers of tests, with the ids of those that fail; None where the command reports none.
        uncollected: Test files that cannot be collected, with the reason.
        lacking: How many tests and files fail because something is missing in their environment, by their messages.
        hung: Tests that hang.
        exit_code: The command's own; None where it did not end.
        stopped: Why it did not finish; empty where it did.
        unusable: Why it cannot be compared with later runs; empty where it can.
        notes: What had to be changed for it to run.
        output: The end of its output, where it did not exit with 0.
    """

    command: str
    tests: TestSummary | None = None
    uncollected: tuple[str, ...] = ()
    lacking: int = 0
    hung: tuple[str, ...] = ()
    exit_code: int | None = None
    stopped: str = ""
    unusable: str = ""
    notes: tuple[str, ...] = ()
    output: str = ""
    duration_ms: int = 0

    @property
    def line(self) -> str:
        """The baseline in one line: `308 pass, 3 fail: a, b, c; tests/x.py cannot be collected: No module named y`."""
        if self.unusable:
            return self.unusable
        if self.tests is None:
            return f"`{self.command}` ends with exit code {self.exit_code}"
        tests = self.tests
        parts = [f"{tests.passed} pass"]
        if failed := [test for test in tests.failing if test not in self._files]:
            parts.append(f"{len(failed)} fail: {first_names(failed)}")
        if tests.skipped:
            parts.append(f"{tests.skipped} skipped")
        text = ", ".join(parts)
        if self.uncollected:
            text += f"; cannot be collected: {first_names(self.uncollected)}"
        if self.hung:
            text += f"; hangs: {first_names(self.hung)}"
        if self.stopped:
            text += f"; {self.stopped}"
        return text

    @property
    def _files(self) -> frozenset[str]:
        return frozenset(entry.partition(": ")[0] for entry in self.uncollected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The results of tests and checks on the untouched commit.

    `suites` is empty where there is nothing to run; `environment` is the key of the environment, `report` tells how it
    was built, `recipe_key` is the key under which the proposal of an environment run for it is stored.
    """

    commit: str
    environment: str = ""
    recipe_key: str = ""
    report: EnvironmentReport = field(default_factory=EnvironmentReport)
    suites: tuple[SuiteBaseline, ...] = field(default_factory=tuple)
    duration_ms: int = 0

    @property
    def line(self) -> str:
        """All of it in one line."""
        return "; ".join(suite.line for suite in self.suites) or "no tests were found"


def suite_baseline(run: TestRun) -> SuiteBaseline:
    """The baseline of one suite: a run on the untouched commit, cut to size."""
    uncollected = [
        f"{test}: {next(iter(run.results[test].message.splitlines()), 'no reason given')}"[:_REASON_CHARS]
        for test in run.failing
        if "::" not in test and (run.framework == "pytest" or "/" in test)
    ]
    summary, failing = run.summary, [run.results[test] for test in run.failing]
    return SuiteBaseline(
        command=run.command,
        tests=replace(summary, failing=summary.failing[:_MAX_TESTS]) if run.reported else None,
        uncollected=tuple(uncollected[:_MAX_TESTS]),
        lacking=sum(any(map(_LACKS.search, (result.message, result.traceback))) for result in failing),
        hung=run.hung[:_MAX_TESTS],
        exit_code=run.exit_code,
        stopped=run.stopped,
        unusable=unusable(run) if run.framework else "",
        notes=run.notes,
        output="" if run.exit_code == 0 else run.output[-_OUTPUT_CHARS:],
        duration_ms=run.duration_ms,
    )


def unusable(run: TestRun) -> str:
    """Why a run of the untouched commit cannot be compared with others; empty where it can."""
    if run.reported:
        return ""
    if run.stopped:
        return run.stopped
    if run.exit_code in (0, _PYTEST_NOTHING_COLLECTED):
        return NO_TESTS
    fault = _fault(run.output)
    return f"its test run reports no test and ends with exit code {run.exit_code}" + (f": {fault}" if fault else "")


def _fault(output: str) -> str:
    """The first line of an output that mentions an error, else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[-1] if lines else "")[:_REASON_CHARS]


def wants_help(baseline: Baseline) -> bool:
    """Whether a repository's tests fail so often for lack of something that the environment needs work first.

    Other failing tests are the task's business, and set-up cannot help a repository without tests.
    """
    return any(
        suite.unusable != NO_TESTS if suite.unusable else suite.lacking > _LACKING_SHARE * _ran(suite.tests)
        for suite in baseline.suites
    )


def gets_on_better(before: Baseline, after: Baseline) -> bool:
    """Whether more tests pass, or as many pass and fewer lack something; and there are no fewer tests."""
    total, passed, lacking = _counts(before)
    total_after, passed_after, lacking_after = _counts(after)
    if total_after < total or passed_after < passed:
        return False
    return passed_after > passed or lacking_after < lacking


def _ran(tests: TestSummary | None) -> int:
    return tests.passed + tests.failed + tests.errors if tests is not None else 0


def _counts(baseline: Baseline) -> tuple[int, int, int]:
    """The numbers of tests in all, of passing ones, and of those that lack something."""
    tests = [suite.tests for suite in baseline.suites if suite.tests is not None]
    lacking = sum(suite.lacking for suite in baseline.suites)
    return sum(summary.total for summary in tests), sum(summary.passed for summary in tests), lacking
