"""Reports read from printed text: cargo, whose machine format is not stable, and unittest.

What is kept while tests are counted is bounded however long the report is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.tools.tests.reports import bounded, lines, seconds, test_result

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
    reports_left = list(reports)
    if len(reports_left) <= 1:
        return reports_left[0] if reports_left else None
    results: dict[str, TestResult] = {}
    named: dict[str, int] = {}
    for report in reports_left:
        for name, result in report.results.items():
            named[name] = number = named.get(name, 0) + 1
            results[name if number == 1 else f"{name} ({number})"] = result
    return TestRun(
        results=results,
        unnamed=TestSummary(
            passed=sum(report.unnamed.passed for report in reports_left),
            failed=sum(report.unnamed.failed for report in reports_left),
            errors=sum(report.unnamed.errors for report in reports_left),
            skipped=sum(report.unnamed.skipped for report in reports_left),
        ),
        duration_ms=sum(report.duration_ms for report in reports_left),
    )


_MAX_KEPT_LINES = 60
_RUNNING = re.compile(r" +Running (?:unittests )?(\S{1,300}) \(.{1,600}\)")
_DOC_TESTS = re.compile(r" +Doc-tests (\S{1,200})")
_RESULT = re.compile(
    r"test result: (?:ok|FAILED)\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored; .{0,100}?"
    r"(?:finished in (\d{1,9}(?:\.\d{1,9})?)s)?"
)
_FAILED = re.compile(r"test (.{1,400}?)(?: - should panic)? \.\.\. FAILED")
_SECTION = re.compile(r"---- (.{1,400}) stdout ----")
_NAMED = re.compile(r" {4}(\S.{0,400})")
_PANIC = re.compile(r"thread '.{0,400}' (?:\(\d{1,20}\) )?panicked at (.{1,400}):")
_ERROR = re.compile(r"(error(?:\[E\d{1,6}\])?): (.+)")
_ARROW = re.compile(r" *--> (\S{1,300}:\d{1,9}:\d{1,9})")
_NOT_ERRORS = ("could not compile", "test failed, to rerun", "aborting due to", "doctest failed")


def parse_cargo_output(text: str) -> TestRun | None:
    """The report in what `cargo test` printed; None where it ran no test and reports no error of the compiler.

    Ids are `file::name` with the file of the test target (`src/lib.rs::tests::adds`). What does not compile is an
    error named `file:line:column`.
    """
    tally, target, elapsed, ran = Tally(), "", 0.0, False
    sections: dict[str, list[str]] = {}
    names: list[str] = []
    section: list[str] | None = None
    failed_names: set[str] = set()  # a test's own output may look like the start of a section, but not of one of these
    listing = False
    for line in lines(text):
        if match := _RUNNING.fullmatch(line) or _DOC_TESTS.fullmatch(line):
            target, sections, names, section, listing = match[1], {}, [], None, False
            failed_names.clear()
        elif match := _FAILED.fullmatch(line):
            failed_names.add(match[1])
        elif match := _RESULT.fullmatch(line):
            ran = True
            passed, failed, ignored = (int(match[number]) for number in (1, 2, 3))
            tally.count("passed", passed)
            tally.count("skipped", ignored)
            for name in names[:failed]:
                output = sections.get(name, [])
                tally.add(f"{target}::{name}" if target else name, "failure", _message(output), "\n".join(output))
            tally.count("failure", failed - len(names))
            elapsed += seconds(match[4] or "0")
            sections, names, section, listing = {}, [], None, False
            failed_names.clear()
        elif (match := _SECTION.fullmatch(line)) and match[1] in failed_names and match[1] not in sections:
            section = sections.setdefault(match[1], [])
        elif line == "failures:":
            names, listing, section = [], True, None
        elif listing and (match := _NAMED.fullmatch(line)):
            names.append(match[1])
        elif section is not None and line.strip() and len(section) < _MAX_KEPT_LINES:
            section.append(line)
    errors = _compile_errors(text)
    for place, message, output in errors:
        tally.add(place, "error", message, output)
    return tally.report(elapsed) if ran or errors else None


def _compile_errors(text: str) -> list[tuple[str, str, str]]:
    """(place, message, the compiler's words) of each error; the same one for two targets counts once."""
    errors: dict[tuple[str, str], str] = {}
    message, place, output = "", "", list[str]()
    for line in [*lines(text), "error: end"]:
        if match := _ERROR.fullmatch(line):
            if message and place:
                errors.setdefault((place, message), "\n".join(output))
            message, place, output = "", "", []
            if not match[2].startswith(_NOT_ERRORS):
                message, output = f"{match[1]}: {match[2]}", [line]
        elif line.startswith("warning"):
            if message and place:
                errors.setdefault((place, message), "\n".join(output))
            message, place, output = "", "", []
        elif message and len(output) < _MAX_KEPT_LINES:
            if not place and (match := _ARROW.fullmatch(line)):
                place = match[1]
            output.append(line)
    return [(place, message, output) for (place, message), output in errors.items()]


def _message(output: list[str]) -> str:
    for position, line in enumerate(output):
        if match := _PANIC.fullmatch(line):
            rest = [part for part in output[position + 1 : position + 4] if not part.startswith(("note:", "stack "))]
            return f"{match[1]}: {' '.join(part.strip() for part in rest)}"
    return output[-1] if output else ""


_RAN = re.compile(r"Ran (\d{1,9}) tests? in (\d{1,9}(?:\.\d{1,9})?)s")
_END = re.compile(r"(?:OK|FAILED|NO TESTS RAN)(?: \((.{1,200})\))?")
_COUNT = re.compile(r"(failures|errors|skipped|expected failures|unexpected successes)=(\d{1,9})")
_TITLE = re.compile(r"(FAIL|ERROR): (\S{1,300})(?: \(([^()]{1,400})\))?( .{1,200})?")
_RULE = "=" * 70


def parse_unittest_output(text: str) -> TestRun | None:
    """The report in what unittest printed; None without its line of counts."""
    output = lines(text)
    position = next((place for place in range(len(output) - 1, -1, -1) if _RAN.fullmatch(output[place])), None)
    if position is None:
        return None
    ran = _RAN.fullmatch(output[position])
    ended = next((end for line in output[position + 1 : position + 4] if (end := _END.fullmatch(line))), None)
    if ran is None or ended is None:
        return None
    numbers = {word: int(number) for word, number in _COUNT.findall(ended[1] or "")}
    failed = numbers.get("failures", 0) + numbers.get("unexpected successes", 0)
    errors = numbers.get("errors", 0)
    skipped = numbers.get("skipped", 0) + numbers.get("expected failures", 0)
    tally = Tally()
    kept: dict[End, int] = {"failure": 0, "error": 0}
    for identifier, end, trace in _failing(output[:position]):
        if kept[end] < (failed if end == "failure" else errors):
            kept[end] += 1
            tally.add(identifier, end, trace[-1] if trace else "", "\n".join(trace))
    tally.count("failure", failed - kept["failure"])
    tally.count("error", errors - kept["error"])
    tally.count("skipped", skipped)
    tally.count("passed", int(ran[1]) - failed - errors - skipped)
    return tally.report(seconds(ran[2]))


def _failing(output: list[str]) -> list[tuple[str, End, list[str]]]:
    failing: list[tuple[str, End, list[str]]] = []
    collecting = False
    for before, line in zip(["", *output], output, strict=False):
        match = _TITLE.fullmatch(line) if before == _RULE else None
        if match:
            identifier = _identifier(match[2], match[3] or "") + (match[4] or "")
            failing.append((identifier, "failure" if match[1] == "FAIL" else "error", []))
            collecting = True
        elif line == _RULE:
            collecting = False
        elif collecting and line.strip("-") and len(failing[-1][2]) < _MAX_KEPT_LINES:
            failing[-1][2].append(line)
    return failing


def _identifier(name: str, place: str) -> str:
    """Python 3.11 prints `name (module.Class.name)`, older ones `name (module.Class)`."""
    if not place or "." not in place:
        return f"{place}.{name}" if place else name
    return place if place.endswith(f".{name}") else f"{place}.{name}"
