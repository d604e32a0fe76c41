"""Results of tests cut to size, and what pytest prints as results.

A runner's output becomes lines that are safe to match: without colours, of bounded length and number.
"""

from __future__ import annotations

import hashlib
import re
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
_OUTPUT_TAIL_CHARS = 256 * 1024

_OF_NODE = re.compile(r"\s*at .{0,200}\bnode:[\w/]{1,80}:\d{1,9}:\d{1,9}\)?,?")
"""A frame of node's own code: no fault is looked for there."""
_SUMMARY_LINE = re.compile(
    r"=*\s{0,9}(no tests ran|\d{1,9} [a-z][a-z0-9 ,]{0,300}) in (\d{1,9}(?:\.\d{0,9})?)s(?: \([\d:]{1,40}\))?\s{0,9}=*"
)
_COUNT = re.compile(r"(\d{1,9}) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_KNOWN = re.compile(r"passed|failed|error|skipped|deselected|warning|no tests ran")
_SUMMARY_HEADER = re.compile(r"=+ short test summary info =+")


def parse_pytest_output(text: str) -> TestRun | None:
    """The run in what pytest printed, where its last line of counts is there; None where it is not.

    The fall-back where no event was written: messages are one line each and tracebacks are missing.
    """
    printed = lines(text[-_OUTPUT_TAIL_CHARS:])
    for position in range(len(printed) - 1, -1, -1):
        match = _SUMMARY_LINE.fullmatch(printed[position])
        if match and _KNOWN.search(match[1]):
            return _from_counts(match[1], float(match[2]), _short_summary(printed[:position]))
    return None


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
    kept: list[str] = []
    counted = False
    for passed, group in groupby(text.split("\n"), lambda line: bool(_PASSED.fullmatch(line[:_LONGEST_PASSED]))):
        rows = list(group)
        counted = counted or (not passed and any(_COUNTED.fullmatch(row[:_LONGEST_PASSED]) for row in rows))
        left_out = passed and len(rows) >= _FEWEST_PASSED
        kept += [f"[... {len(rows)} lines of tests that passed{where} ...]"] if left_out else rows
    return "\n".join(kept) if counted and len(kept) < text.count("\n") + 1 else text


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


def _from_counts(counts: str, run_seconds: float, failing: dict[str, TestResult]) -> TestRun:
    totals = dict.fromkeys(("passed", "failed", "error", "skipped", "xfailed", "xpassed"), 0)
    for number, word in _COUNT.findall(counts):
        totals[word.rstrip("s") if word.startswith("error") else word] += int(number)
    named = [result.outcome for result in failing.values()]
    return TestRun(
        results=failing,
        unnamed=TestSummary(
            passed=totals["passed"] + totals["xpassed"],
            failed=max(0, totals["failed"] - named.count(TestOutcome.FAILED)),
            errors=max(0, totals["error"] - named.count(TestOutcome.ERROR)),
            skipped=totals["skipped"] + totals["xfailed"],
        ),
        duration_ms=round(min(run_seconds, 1e7) * 1000),
    )


def _short_summary(printed: list[str]) -> dict[str, TestResult]:
    headers = [position for position, line in enumerate(printed) if _SUMMARY_HEADER.fullmatch(line)]
    test_results: dict[str, TestResult] = {}
    for line in printed[headers[-1] + 1 :] if headers else []:
        word, _, rest = line.partition(" ")
        if word in ("FAILED", "ERROR") and rest:
            identifier, message = _split_summary(rest)
            outcome = TestOutcome.FAILED if word == "FAILED" else TestOutcome.ERROR
            test_results.setdefault(identifier, test_result(outcome, message))
    return test_results


def _split_summary(rest: str) -> tuple[str, str]:
    """A line of pytest's short summary as id and message; a parameter in brackets may itself hold ` - `."""
    start = 0
    while (cut := rest.find(" - ", start)) >= 0:
        before = rest[:cut]
        if "[" not in before or before.endswith("]"):
            return bounded(before), rest[cut + 3 :][:MAX_MESSAGE_CHARS]
        start = cut + 3
    return bounded(rest), ""
