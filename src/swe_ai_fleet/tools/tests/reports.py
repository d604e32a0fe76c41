"""Results of tests cut to size, one by one and counted.

A runner's output becomes lines that are safe to match: without colours, of bounded length and number.
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
    """The lines, split at line feeds only; of too many, the last ones."""
    all_lines = text.split("\n")
    return [uncoloured(line[:_MAX_LINE_CHARS]).rstrip() for line in all_lines[-MAX_LINES:]]


def uncoloured(text: str) -> str:
    """The text without the sequences that colour it."""
    return _ANSI.sub("", text)


def seconds(text: str) -> float:
    """A number of seconds as a runner printed it, 0 where it is none."""
    return number_in(text, 0, 1e7) or 0.0


MAX_REPORT_BYTES = 8 * 1024 * 1024
MAX_ID_CHARS = 500
MAX_MESSAGE_CHARS = 600
MAX_TRACEBACK_CHARS = 2_400
_TRACEBACK_LINES = 24

_OF_NODE = re.compile(r"\s*at .{0,200}\bnode:[\w/]{1,80}:\d{1,9}:\d{1,9}\)?,?")
"""A frame of node's own code: no fault is looked for there."""


_PASSED = re.compile(
    r"(?:\[gw\d+\] \[ *\d+%\] )?PASSED \S+::.*|[^:\s]+::.* PASSED(?: +\[ *\d+%\])?"  # pytest
    r"|\w.* \.\.\. ok| *[\u2713\u2714] .*\([\d.]+ ?m?s\)"  # unittest and cargo, node and jest
)
_COUNTED = re.compile(r".*\b\d+ passed\b.*|Ran \d+ tests? in .*|\u2139 pass \d+")
_FEWEST_PASSED = 3
_LONGEST_PASSED = 300


def without_passes(text: str, whole: str = "") -> str:
    """What a command printed without its lines of single tests that passed, where it also says how many did.

    `whole` is where all of it can be read. The text itself where there are no such lines.
    """
    where = f"; all of it: {whole}" if whole else ""
    lines: list[str] = []
    counted = False
    for passed, group in groupby(text.split("\n"), lambda line: bool(_PASSED.fullmatch(line[:_LONGEST_PASSED]))):
        rows = list(group)
        counted = counted or (not passed and any(_COUNTED.fullmatch(row[:_LONGEST_PASSED]) for row in rows))
        left_out = passed and len(rows) >= _FEWEST_PASSED
        lines += [f"[... {len(rows)} lines of tests that passed{where} ...]"] if left_out else rows
    return "\n".join(lines) if counted and len(lines) < text.count("\n") + 1 else text


def test_result(outcome: TestOutcome, message: str = "", traceback: str = "", duration_ms: int = 0) -> TestResult:
    """A test's result with everything about it cut to size; without a message, the traceback's last line is it."""
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
    """An id of bearable length; two long ones that differ stay different."""
    if len(identifier) <= MAX_ID_CHARS:
        return identifier
    digest = hashlib.sha256(identifier.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{identifier[: MAX_ID_CHARS - 13]}~{digest}"


MAX_NAMED = 100_000
"""Tests kept by name; more are counted only."""


class Tally:
    """Takes one test after the other and gives a run. Tests of the same id stay apart."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long the run took."""
        self._counts = Counter[TestOutcome]()
        self._results: dict[str, TestResult] = {}
        self._named: dict[str, int] = {}

    def add(self, identifier: str, outcome: TestOutcome, message: str = "", traceback: str = "") -> None:
        """One test and how it ended."""
        if len(self._results) >= MAX_NAMED:
            self._counts[outcome] += 1
            return
        name = bounded(identifier or "(no name)")
        self._named[name] = number = self._named.get(name, 0) + 1
        self._results[name if number == 1 else f"{name} ({number})"] = test_result(outcome, message, traceback)

    def count(self, outcome: TestOutcome, number: int) -> None:
        """Tests of which no more is known than how they ended."""
        self._counts[outcome] += max(0, number)

    def report(self) -> TestRun:
        """What was counted."""
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
