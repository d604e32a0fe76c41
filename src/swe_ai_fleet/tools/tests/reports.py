"""Test results of bounded size, and the lines of a runner's output.

Lines have no colours and bounded length and number, so that regular expressions can be used on them safely.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from itertools import groupby

from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.json_values import number_in
from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun

MAX_LINES = 200_000
_MAX_LINE_CHARS = 4_000
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def lines(text: str) -> list[str]:
    """The last MAX_LINES lines, split at line feeds only."""
    all_lines = text.split("\n")
    return [uncoloured(line[:_MAX_LINE_CHARS]).rstrip() for line in all_lines[-MAX_LINES:]]


def uncoloured(text: str) -> str:
    """The text without colour sequences."""
    return _ANSI.sub("", text)


def seconds(text: str) -> float:
    """A number of seconds that a runner printed; 0 if it is invalid."""
    return number_in(text, 0, 1e7) or 0.0


MAX_REPORT_BYTES = 8 * 1024 * 1024
MAX_ID_CHARS = 500
MAX_MESSAGE_CHARS = 600
MAX_TRACEBACK_CHARS = 2_400
_TRACEBACK_LINES = 24

_OF_NODE = re.compile(r"\s*at .{0,200}\bnode:[\w/]{1,80}:\d{1,9}:\d{1,9}\)?,?")
"""A stack frame of node's own code."""


_PASSED = re.compile(
    r"(?:\[gw\d+\] \[ *\d+%\] )?PASSED \S+::.*|[^:\s]+::.* PASSED(?: +\[ *\d+%\])?"  # pytest
    r"|\w.* \.\.\. ok| *[\u2713\u2714] .*\([\d.]+ ?m?s\)"  # unittest and cargo, node and jest
)
_COUNTED = re.compile(r".*\b\d+ passed\b.*|Ran \d+ tests? in .*|\u2139 pass \d+")
_FEWEST_PASSED = 3
_LONGEST_PASSED = 300


def without_passes(text: str, whole: str = "") -> str:
    """A command's output without lines about single passed tests, if it also has a line with their number.

    `whole` is the path of the complete output. The text is returned unchanged if nothing is omitted.
    """
    where = f"; all of it: {whole}" if whole else ""
    lines: list[str] = []
    counted = False
    for passed, group in groupby(text.split("\n"), lambda line: bool(_PASSED.fullmatch(line[:_LONGEST_PASSED]))):
        rows = list(group)
        counted = counted or (not passed and any(_COUNTED.fullmatch(row[:_LONGEST_PASSED]) for row in rows))
        if passed and len(rows) >= _FEWEST_PASSED:
            lines.append(f"[... {len(rows)} lines of tests that passed{where} ...]")
        else:
            lines += rows
    return "\n".join(lines) if counted and len(lines) < text.count("\n") + 1 else text


def test_result(outcome: TestOutcome, message: str = "", traceback: str = "", duration_ms: int = 0) -> TestResult:
    """A test's result of bounded size; without a message, the traceback's last line is used."""
    if outcome is TestOutcome.PASSED:
        return TestResult(outcome=outcome, duration_ms=duration_ms)
    trace_lines = [line for line in traceback.strip().splitlines() if line.strip() and not _OF_NODE.fullmatch(line)]
    if not message or message == "collection failure":
        message = trace_lines[-1].removeprefix("E").strip() if trace_lines else message
    tail = "\n".join(trace_lines[-_TRACEBACK_LINES:])
    return TestResult(
        outcome=outcome,
        duration_ms=duration_ms,
        message=message.strip()[:MAX_MESSAGE_CHARS],
        traceback=tail[-MAX_TRACEBACK_CHARS:],
    )


test_result.__test__ = False  # type: ignore[attr-defined]


def bounded(identifier: str) -> str:
    """An id of bounded length; different long ids stay different."""
    if len(identifier) <= MAX_ID_CHARS:
        return identifier
    digest = hashlib.sha256(identifier.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{identifier[: MAX_ID_CHARS - 13]}~{digest}"


MAX_NAMED = 100_000
"""Tests that are stored by name; further ones are only counted."""


class Tally:
    """Collects the tests of a run. Tests with the same id are numbered."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """The duration of the run."""
        self._counts = Counter[TestOutcome]()
        self._results: dict[str, TestResult] = {}
        self._named: dict[str, int] = {}

    def add(self, identifier: str, outcome: TestOutcome, message: str = "", traceback: str = "") -> None:
        """Add one test with its outcome."""
        if len(self._results) >= MAX_NAMED:
            self._counts[outcome] += 1
            return
        name = bounded(identifier or "(no name)")
        self._named[name] = number = self._named.get(name, 0) + 1
        self._results[name if number == 1 else f"{name} ({number})"] = test_result(outcome, message, traceback)

    def count(self, outcome: TestOutcome, number: int) -> None:
        """Add tests of which only the outcome is known."""
        self._counts[outcome] += max(0, number)

    def report(self) -> TestRun:
        """The run with all added tests."""
        counts = self._counts
        return TestRun(
            results=self._results,
            unnamed=TestSummary(
                passed=counts[TestOutcome.PASSED],
                failed=counts[TestOutcome.FAILED],
                errors=counts[TestOutcome.ERROR],
                skipped=counts[TestOutcome.SKIPPED],
            ),
            duration_ms=round(min(self.seconds, 1e7) * 1000),
        )
