"""Test reports: what a runner wrote (JUnit XML, pytest's own output) as domain values."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from xml.parsers import expat

from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.tools.tests.lines import lines, seconds

MAX_REPORT_BYTES = 8 * 1024 * 1024
MAX_ID_CHARS = 500
MAX_MESSAGE_CHARS = 600
MAX_TRACEBACK_CHARS = 2_400
_TRACEBACK_LINES = 24
_OUTPUT_TAIL_CHARS = 256 * 1024

_SUMMARY_LINE = re.compile(r"=*\s*(no tests ran|\d+ [a-z][a-z0-9 ,]*) in (\d+\.?\d*)s(?: \([\d:]+\))?\s*=*")
_COUNT = re.compile(r"(\d{1,9}) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_KNOWN = re.compile(r"passed|failed|error|skipped|deselected|warning|no tests ran")
_SUMMARY_HEADER = re.compile(r"=+ short test summary info =+")


class ReportUnreadable(FleetError):
    """A test report is too large, malformed or carries a document type declaration."""


def parse_junit(data: bytes, *, repeated: bool = True, root: str = "") -> TestRun:
    """The run in a JUnit XML document, as pytest and most other runners write it.

    Ids are pytest's own (`tests/test_a.py::TestK::test_b[1]`) where the document names the file, as pytest's does with
    `junit_family=xunit1`, else `classname::name`, for node's `suite > name`. Expected failures count as skipped.

    Args:
        data: The document, at most MAX_REPORT_BYTES. It may be hostile: a DOCTYPE, hence any entity, is refused.
        repeated: Whether a test named twice is the same one (pytest's way of saying that its tear-down failed too) and
            counts once, with its worst end; otherwise two tests may bear one name.
        root: A directory that is cut off names of files.

    Raises:
        ReportUnreadable: Too large, no well-formed XML, a DOCTYPE, or no JUnit document.
    """
    if len(data) > MAX_REPORT_BYTES:
        raise ReportUnreadable(f"the test report has {len(data)} bytes, {MAX_REPORT_BYTES} are allowed")
    reader = _JUnitReader(repeated=repeated, root=root)
    try:
        reader.parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError) as error:  # the latter two: encodings Python does not know
        raise ReportUnreadable(f"the test report is no well-formed XML: {error}") from None
    return reader.report()


def parse_pytest_output(text: str) -> TestRun | None:
    """The run in what pytest printed, where its last line of counts is there; None where it is not.

    The fall-back when there is no XML: messages are one line each and tracebacks are missing.
    """
    printed = lines(text[-_OUTPUT_TAIL_CHARS:])
    for position in range(len(printed) - 1, -1, -1):
        match = _SUMMARY_LINE.fullmatch(printed[position])
        if match and _KNOWN.search(match[1]):
            return _from_counts(match[1], float(match[2]), _short_summary(printed[:position]))
    return None


_NODE_CLASS = "test"
"""What node writes as the class of every test."""
_MAX_TITLES = 20
_WORST_FIRST = ("error", "failure", "skipped", "passed")
_OUTCOMES = {
    "error": TestOutcome.ERROR,
    "failure": TestOutcome.FAILED,
    "skipped": TestOutcome.SKIPPED,
    "passed": TestOutcome.PASSED,
}


class _JUnitReader:
    """Builds a report from expat's events; memory is bounded by the document, entities never come to be."""

    def __init__(self, *, repeated: bool, root: str) -> None:
        self._repeated = repeated
        self._prefix = f"{root}/" if root else ""
        self._titles: list[str] = []
        self._seen: Counter[str] = Counter()
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self._depth = 0
        self._suites = 0
        self._seconds = 0.0
        self._case: dict[str, str] = {}
        self._in_case = False
        self._end_of_case = "passed"
        self._message = ""
        self._collecting: list[str] | None = None
        self._traceback = ""
        self._ends: dict[str, str] = {}
        self._results: dict[str, TestResult] = {}

    def report(self) -> TestRun:
        if not self._suites and not self._ends:
            raise ReportUnreadable("the test report is no JUnit document: it holds no testsuite")
        return TestRun(results=self._results, duration_ms=round(self._seconds * 1000))

    def _refuse_doctype(self, name: str, system: str | None, public: str | None, internal: bool) -> None:
        raise ReportUnreadable("the test report carries a DOCTYPE, which no test runner writes: refused")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if name == "testsuite":
            self._suites += 1
            self._titles.append(attributes.get("name", ""))
            # Suites nest in some runners' reports; the outermost one's time covers the others'.
            if self._depth <= 2:
                self._seconds += seconds(attributes.get("time", ""))
        elif name == "testcase" and not self._in_case:
            if not self._titles:
                self._seconds += seconds(attributes.get("time", ""))
            self._in_case, self._case = True, attributes
            self._end_of_case, self._message, self._traceback = "passed", "", ""
        elif name in _WORST_FIRST and self._in_case and _worse(name, self._end_of_case):
            self._end_of_case = name
            self._message = attributes.get("message", "")
            self._collecting = []

    def _text(self, data: str) -> None:
        if self._collecting is not None:
            self._collecting.append(data)

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name in _WORST_FIRST and self._collecting is not None:
            self._traceback, self._collecting = "".join(self._collecting), None
        elif name == "testcase" and self._in_case:
            self._in_case = False
            self._record()
        elif name == "testsuite":
            self._titles.pop()

    def _record(self) -> None:
        end = self._end_of_case
        if not self._repeated and end == "failure" and self._whole_file:
            end = "error"  # vitest's way of saying that the file itself could not be run
        identifier = self._identifier()
        known = self._ends.get(identifier)
        if known is None or _worse(end, known):
            self._ends[identifier] = end
            milliseconds = round(seconds(self._case.get("time", "")) * 1000)
            self._results[identifier] = test_result(_OUTCOMES[end], self._message, self._traceback, milliseconds)

    @property
    def _whole_file(self) -> bool:
        return self._case.get("name") is not None and self._case.get("name") == self._case.get("classname")

    def _identifier(self) -> str:
        case = self._case | {"file": self._case.get("file", "").removeprefix(self._prefix)}
        if not self._repeated and case.get("classname") == _NODE_CLASS:
            path = " > ".join([*self._titles[-_MAX_TITLES:], case.get("name", "").removeprefix(self._prefix)])
            identifier = bounded(f"{case['file']}::{path}" if case["file"] else path)
        else:
            identifier = bounded(case["name"]) if not self._repeated and self._whole_file else _node_id(case)
        if self._repeated:
            return identifier
        self._seen[identifier] += 1
        number = self._seen[identifier]
        return identifier if number == 1 else f"{identifier} ({number})"


def _worse(end: str, than: str) -> bool:
    return _WORST_FIRST.index(end) < _WORST_FIRST.index(than)


def test_result(outcome: TestOutcome, message: str = "", traceback: str = "", duration_ms: int = 0) -> TestResult:
    """A test's result with everything about it cut to size; without a message, the traceback's last line is it."""
    if outcome is TestOutcome.PASSED:
        return TestResult(outcome=outcome, duration_ms=duration_ms)
    said = [line for line in traceback.strip().splitlines() if line.strip()]
    if not message or message == "collection failure":
        message = said[-1].removeprefix("E").strip() if said else message
    tail = "\n".join(said[-_TRACEBACK_LINES:])
    return TestResult(
        outcome=outcome,
        duration_ms=duration_ms,
        message=message.strip()[:MAX_MESSAGE_CHARS],
        traceback=tail[-MAX_TRACEBACK_CHARS:],
    )


test_result.__test__ = False  # type: ignore[attr-defined]


def _node_id(case: dict[str, str]) -> str:
    name, class_name, file = case.get("name", ""), case.get("classname", ""), case.get("file", "")
    if not file:
        return bounded(f"{class_name}::{name}" if class_name else name)
    if not class_name:  # pytest's way of saying that the file itself could not be collected
        return bounded(file)
    module = file.removesuffix(".py").replace("/", ".")
    classes = class_name.removeprefix(module) if class_name.startswith(module) else ""
    return bounded("::".join([file, *(part for part in classes.split(".") if part), name]))


def bounded(identifier: str) -> str:
    """An id of bearable length; two long ones that differ stay different."""
    if len(identifier) <= MAX_ID_CHARS:
        return identifier
    digest = hashlib.sha256(identifier.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{identifier[: MAX_ID_CHARS - 13]}~{digest}"


def _from_counts(counts: str, took: float, failing: dict[str, TestResult]) -> TestRun:
    found = dict.fromkeys(("passed", "failed", "error", "skipped", "xfailed", "xpassed"), 0)
    for number, what in _COUNT.findall(counts):
        found[what.rstrip("s") if what.startswith("error") else what] += int(number)
    named = [result.outcome for result in failing.values()]
    return TestRun(
        results=failing,
        unnamed=TestSummary(
            passed=found["passed"] + found["xpassed"],
            failed=max(0, found["failed"] - named.count(TestOutcome.FAILED)),
            errors=max(0, found["error"] - named.count(TestOutcome.ERROR)),
            skipped=found["skipped"] + found["xfailed"],
        ),
        duration_ms=round(min(took, 1e7) * 1000),
    )


def _short_summary(printed: list[str]) -> dict[str, TestResult]:
    headers = [position for position, line in enumerate(printed) if _SUMMARY_HEADER.fullmatch(line)]
    found: dict[str, TestResult] = {}
    for line in printed[headers[-1] + 1 :] if headers else []:
        word, _, rest = line.partition(" ")
        if word in ("FAILED", "ERROR") and rest:
            identifier, message = _split_summary(rest)
            outcome = TestOutcome.FAILED if word == "FAILED" else TestOutcome.ERROR
            found.setdefault(identifier, test_result(outcome, message))
    return found


def _split_summary(rest: str) -> tuple[str, str]:
    """A line of pytest's short summary as id and message; a parameter in brackets may itself hold ` - `."""
    start = 0
    while (cut := rest.find(" - ", start)) >= 0:
        before = rest[:cut]
        if "[" not in before or before.endswith("]"):
            return bounded(before), rest[cut + 3 :][:MAX_MESSAGE_CHARS]
        start = cut + 3
    return bounded(rest), ""
