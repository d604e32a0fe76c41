"""Parses test results from printed output, for commands that start runners but pass on no options: make, a script.

A runner that the fleet starts itself reports each test instead. A pytest or `go test` behind a Makefile cannot be told
to write a report, unittest and ctest have none, and cargo's is not stable. TAP, the format of node, tape, tap and
prove, is parsed too. The results are bounded however long the output is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from swe_ai_fleet.domain.test_run import TestOutcome, TestRun
from swe_ai_fleet.tools.tests.reports import Tally, lines, seconds

_MAX_KEPT_LINES = 60
_MAX_DEPTH = 64


def recognise(text: str) -> TestRun | None:
    """The results in any runner's output, those of several runners added up; None if none are recognised.

    A C compiler's error is a test with the outcome error, named `file:line:column`.
    """
    printed, tally = lines(text), Tally()
    recognised = [read(printed, tally) for read in (_pytest, _unittest, _cargo, _go, _tap, _ctest, _diagnostics)]
    return tally.report() if any(recognised) else None


_SUMMARY_LINE = re.compile(
    r"=*\s{0,9}(no tests ran|\d{1,9} (?:x?passed|x?failed|error|skipped|deselected|warning|rerun|subtests)"
    r"[a-z0-9 ,]{0,300}) in (\d{1,9}(?:\.\d{0,9})?)s(?: \([\d:]{1,40}\))?\s{0,9}=*"
)
_PYTEST_COUNT = re.compile(r"(\d{1,9}) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_SUMMARY_HEADER = re.compile(r"=+ short test summary info =+")
_OUTCOMES = {"FAILED": TestOutcome.FAILED, "FAIL": TestOutcome.FAILED, "ERROR": TestOutcome.ERROR}


def _pytest(printed: list[str], tally: Tally) -> bool:
    """Parse pytest's output, which must have the final line of counts: messages of one line each, no tracebacks."""
    match, position = _last(_SUMMARY_LINE, printed)
    if match is None:
        return False
    totals = Counter[str]()
    for number, word in _PYTEST_COUNT.findall(match[1]):
        totals[word.removesuffix("s")] += int(number)
    failing = _short_summary(printed[:position])
    for name, (outcome, message) in failing.items():
        tally.add(name, outcome, message)
    outcomes = Counter(outcome for outcome, _ in failing.values())
    tally.count(TestOutcome.PASSED, totals["passed"] + totals["xpassed"])
    tally.count(TestOutcome.FAILED, totals["failed"] - outcomes[TestOutcome.FAILED])
    tally.count(TestOutcome.ERROR, totals["error"] - outcomes[TestOutcome.ERROR])
    tally.count(TestOutcome.SKIPPED, totals["skipped"] + totals["xfailed"])
    tally.seconds += seconds(match[2])
    return True


def _short_summary(printed: list[str]) -> dict[str, tuple[TestOutcome, str]]:
    headers = [position for position, line in enumerate(printed) if _SUMMARY_HEADER.fullmatch(line)]
    failing: dict[str, tuple[TestOutcome, str]] = {}
    for line in printed[headers[-1] + 1 :] if headers else []:
        word, _, rest = line.partition(" ")
        if word in ("FAILED", "ERROR") and rest:
            identifier, message = _split_summary(rest)
            failing.setdefault(identifier, (_OUTCOMES[word], message))
    return failing


def _split_summary(rest: str) -> tuple[str, str]:
    """A line of pytest's short summary as id and message; a parameter in brackets may itself hold ` - `."""
    start = 0
    while (cut := rest.find(" - ", start)) >= 0:
        before = rest[:cut]
        if "[" not in before or before.endswith("]"):
            return before, rest[cut + 3 :]
        start = cut + 3
    return rest, ""


_RAN = re.compile(r"Ran (\d{1,9}) tests? in (\d{1,9}(?:\.\d{1,9})?)s")
_END = re.compile(r"(?:OK|FAILED|NO TESTS RAN)(?: \((.{1,200})\))?")
_UNITTEST_COUNT = re.compile(r"(failures|errors|skipped|expected failures|unexpected successes)=(\d{1,9})")
_UNITTEST_TITLE = re.compile(r"(FAIL|ERROR): (\S{1,300})(?: \(([^()]{1,400})\))?( .{1,200})?")
_RULE = "=" * 70


def _unittest(printed: list[str], tally: Tally) -> bool:
    """Parse unittest's output, which must have the line of counts."""
    ran, position = _last(_RAN, printed)
    ended = next((end for line in printed[position + 1 : position + 4] if (end := _END.fullmatch(line))), None)
    if ran is None or ended is None:
        return False
    numbers = {word: int(number) for word, number in _UNITTEST_COUNT.findall(ended[1] or "")}
    counts = Counter(
        {
            TestOutcome.FAILED: numbers.get("failures", 0) + numbers.get("unexpected successes", 0),
            TestOutcome.ERROR: numbers.get("errors", 0),
            TestOutcome.SKIPPED: numbers.get("skipped", 0) + numbers.get("expected failures", 0),
        }
    )
    counts[TestOutcome.PASSED] = int(ran[1]) - counts.total()
    for identifier, outcome, trace in _failing(printed[:position]):
        if counts[outcome] > 0:
            counts[outcome] -= 1
            tally.add(identifier, outcome, trace[-1] if trace else "", "\n".join(trace))
    for outcome, number in counts.items():
        tally.count(outcome, number)
    tally.seconds += seconds(ran[2])
    return True


def _last(pattern: re.Pattern[str], printed: Sequence[str]) -> tuple[re.Match[str] | None, int]:
    """The last line that a pattern matches, and its position."""
    for position in range(len(printed) - 1, -1, -1):
        if match := pattern.fullmatch(printed[position]):
            return match, position
    return None, len(printed)


def _failing(output: list[str]) -> list[tuple[str, TestOutcome, list[str]]]:
    failing: list[tuple[str, TestOutcome, list[str]]] = []
    collecting = False
    for before, line in zip(["", *output], output, strict=False):
        match = _UNITTEST_TITLE.fullmatch(line) if before == _RULE else None
        if match:
            identifier = _identifier(match[2], match[3] or "") + (match[4] or "")
            failing.append((identifier, _OUTCOMES[match[1]], []))
            collecting = True
        elif line == _RULE:
            collecting = False
        elif collecting and line.strip("-"):
            _keep(failing[-1][2], line)
    return failing


def _identifier(name: str, place: str) -> str:
    """Python 3.11 prints `name (module.Class.name)`, older ones `name (module.Class)`."""
    if not place or "." not in place:
        return f"{place}.{name}" if place else name
    return place if place.endswith(f".{name}") else f"{place}.{name}"


_RUNNING = re.compile(r" +Running (?:unittests )?(\S{1,300}) \(.{1,600}\)")
_DOC_TESTS = re.compile(r" +Doc-tests (\S{1,200})")
_CARGO_RESULT = re.compile(
    r"test result: (?:ok|FAILED)\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored; .{0,100}?"
    r"(?:finished in (\d{1,9}(?:\.\d{1,9})?)s)?"
)
_CARGO_FAILED = re.compile(r"test (.{1,400}?)(?: - should panic)? \.\.\. FAILED")
_CARGO_SECTION = re.compile(r"---- (.{1,400}) stdout ----")
_CARGO_NAMED = re.compile(r" {4}(\S.{0,400})")
_PANIC = re.compile(r"thread '.{0,400}' (?:\(\d{1,20}\) )?panicked at (.{1,400}):")
_ERROR = re.compile(r"(error(?:\[E\d{1,6}\])?): (.+)")
_ARROW = re.compile(r" *--> (\S{1,300}:\d{1,9}:\d{1,9})")
_NOT_ERRORS = ("could not compile", "test failed, to rerun", "aborting due to", "doctest failed")


def _cargo(printed: list[str], tally: Tally) -> bool:
    """Parse the output of `cargo test`, which must have a test or an error of the compiler.

    Ids are `file::name` with the file of the test target (`src/lib.rs::tests::adds`). An error of the compiler is
    named `file:line:column`.
    """
    target, ran = "", False
    sections: dict[str, list[str]] = {}
    names: list[str] = []
    section: list[str] | None = None
    failed_names: set[str] = set()  # a section must have one of these names: a test's output may look like its start
    listing = False
    for line in printed:
        if match := _RUNNING.fullmatch(line) or _DOC_TESTS.fullmatch(line):
            target, sections, names, section, listing = match[1], {}, [], None, False
            failed_names.clear()
        elif match := _CARGO_FAILED.fullmatch(line):
            failed_names.add(match[1])
        elif match := _CARGO_RESULT.fullmatch(line):
            ran = True
            passed, failed, ignored = (int(match[number]) for number in (1, 2, 3))
            tally.count(TestOutcome.PASSED, passed)
            tally.count(TestOutcome.SKIPPED, ignored)
            for name in names[:failed]:
                output = sections.get(name, [])
                identifier = f"{target}::{name}" if target else name
                tally.add(identifier, TestOutcome.FAILED, _panic(output), "\n".join(output))
            tally.count(TestOutcome.FAILED, failed - len(names))
            tally.seconds += seconds(match[4] or "0")
            sections, names, section, listing = {}, [], None, False
            failed_names.clear()
        elif (match := _CARGO_SECTION.fullmatch(line)) and match[1] in failed_names and match[1] not in sections:
            section = sections.setdefault(match[1], [])
        elif line == "failures:":
            names, listing, section = [], True, None
        elif listing and (match := _CARGO_NAMED.fullmatch(line)):
            names.append(match[1])
        elif section is not None:
            _keep(section, line)
    errors = _compile_errors(printed)
    for (place, message), output in errors.items():
        tally.add(place, TestOutcome.ERROR, message, output)
    return ran or bool(errors)


def _compile_errors(printed: list[str]) -> dict[tuple[str, str], str]:
    """The compiler's output by position and message; the same error for two targets counts once."""
    errors: dict[tuple[str, str], str] = {}
    message, place, output = "", "", list[str]()
    for line in [*printed, "error: end"]:
        match = _ERROR.fullmatch(line)
        if match or line.startswith("warning"):
            if message and place:
                errors.setdefault((place, message), "\n".join(output))
            is_error = match is not None and not match[2].startswith(_NOT_ERRORS)
            message, place, output = f"{match[1]}: {match[2]}" if match and is_error else "", "", [line]
        elif message and len(output) < _MAX_KEPT_LINES:
            if not place and (match := _ARROW.fullmatch(line)):
                place = match[1]
            output.append(line)
    return errors


def _panic(output: list[str]) -> str:
    for position, line in enumerate(output):
        if match := _PANIC.fullmatch(line):
            rest = [part for part in output[position + 1 : position + 4] if not part.startswith(("note:", "stack "))]
            return f"{match[1]}: {' '.join(part.strip() for part in rest)}"
    return output[-1] if output else ""


_GO_RESULT = re.compile(r" {0,64}--- (PASS|FAIL|SKIP): (\S{1,500}) \((\d{1,9}(?:\.\d{1,9})?)s\)")
_GO_PACKAGE = re.compile(r"(ok  |FAIL|\?   )\t(\S{1,500})(?:\t(?:(\d{1,9}(?:\.\d{1,9})?)s|(.{0,200})))?")
_NOT_BUILT = re.compile(r"FAIL\t(\S{1,500}) \[(build|setup) failed\]")
# The format of the compiler and vet: file, line, column, message.
_GO_PLACE = re.compile(r"(?:vet: )?([^\s:][^:]{0,300}\.go):(\d{1,9})(?::(\d{1,9}))?: (.+)")
_GO_HEADING = re.compile(r"# (\S{1,500})(?: \[.{1,500}\])?")


def _go(printed: list[str], tally: Tally) -> bool:
    """Parse the output of `go test`, which must have a test's end or a failed package; passed tests need `-v`."""
    failed = False
    results: dict[str, tuple[str, list[str]]] = {}
    output: list[str] | None = None
    heading = ""
    builds: dict[str, list[str]] = {}
    for line in printed:
        if match := _GO_RESULT.fullmatch(line):
            output = []
            results[match[2]] = (match[1], output)
        elif match := _NOT_BUILT.fullmatch(line):
            failed = True
            errors = builds.get(match[1], [])
            first = next((error for error in errors if _GO_PLACE.fullmatch(error)), "".join(errors[:1]))
            tally.add(match[1], TestOutcome.ERROR, first, "\n".join(errors))
        elif match := _GO_PACKAGE.fullmatch(line):
            tally.seconds += seconds(match[3] or "")
        elif match := _GO_HEADING.fullmatch(line):
            heading = match[1]
        elif heading and _GO_PLACE.fullmatch(line):
            _keep(builds.setdefault(heading, []), line)
        elif output is not None and line.startswith((" ", "\t", "panic:")):
            _keep(output, line)
    _leaves(tally, results)
    return failed or bool(results)


def _keep(output: list[str], line: str) -> None:
    if line.strip() and len(output) < _MAX_KEPT_LINES:
        output.append(line)


def _leaves(tally: Tally, tests: dict[str, tuple[str, list[str]]]) -> None:
    """Add tests without subtests, and those that failed though none of their subtests did."""
    parents = {name.rpartition("/")[0] for name in tests}
    blamed = {name.rpartition("/")[0] for name, (end, _) in tests.items() if end == "FAIL"}
    for name, (end, output) in tests.items():
        if name in parents and (end != "FAIL" or name in blamed):
            continue
        if end == "FAIL":
            reason = next((line for line in output if line.startswith("panic:")), "") or (output or [""])[-1].strip()
            tally.add(name, TestOutcome.FAILED, reason, "\n".join(output))
        else:
            tally.add(name, TestOutcome.SKIPPED if end == "SKIP" else TestOutcome.PASSED)


_MARK = re.compile(r"TAP version 1[234]|1\.\.\d{1,9}(?: +#.*)?")
_POINT = re.compile(r"( {0,256})(not ok|ok)(?: (\d{1,9}))?(?: (.*))?")
_SUBTEST = re.compile(r"( {0,256})# Subtest: (.*)")
_FILE = re.compile(r"\S{1,300}\.[cm]?[jt]sx?")
_TIME = re.compile(r"\s*# time=\d{1,12}(?:\.\d{1,12})?m?s$")
_DIRECTIVE = re.compile(r"# *(skip|todo)\b", re.I)
_TITLE = re.compile(r"# (?!(?:tests|pass|fail|ok|skip|todo|time|cancelled|suites|duration_ms|Subtest)\b)(\S.{0,300})")
_FACT = re.compile(r" *(error|message): *(.*)")
_KEY = re.compile(r" *\w{1,40}:(?: .*)?")
_DURATION = re.compile(r"# duration_ms (\d{1,12}(?:\.\d{1,12})?)")


def _tap(printed: list[str], tally: Tally) -> bool:
    """Parse a TAP stream, which must have a version or a plan, and at least one test point.

    A test with subtests counts as its subtests. A comment before points is their title (tape's format). If subtests are
    those of a file (tap's format), ids begin with the file: `file::title > title`.
    """
    if not any(map(_MARK.fullmatch, map(str.strip, printed))):
        return False
    points = 0
    titles: dict[int, str] = {}
    below: dict[int, bool] = {}  # by depth: whether a point at this depth has failed since its last parent
    failing, heading, in_block = "", "", False
    block: list[str] = []

    def settle() -> None:
        nonlocal failing
        if failing:
            tally.add(failing, TestOutcome.FAILED, _yaml_message(block), "\n".join(block))
        failing = ""

    for line in printed:
        stripped = line.strip()
        if in_block:
            in_block = stripped != "..."
            if in_block and failing and len(block) < _MAX_KEPT_LINES:
                block.append(line)
            continue
        if stripped == "---":
            in_block = True
        elif match := _POINT.fullmatch(line):
            settle()
            points += 1
            depth, good = len(match[1]), match[2] == "ok"
            title = _TIME.sub("", (match[4] or match[3] or "").removeprefix("- "))
            deeper = [other for other in below if other > depth]
            child_failed = any(below.pop(other) for other in deeper)
            titles = {other: subtest for other, subtest in titles.items() if other <= depth}
            directive = _DIRECTIVE.search(title)
            name = title[: directive.start()].strip() if directive else title.strip()
            below[depth] = below.get(depth, False) or not (good or directive) or child_failed
            if deeper and (good or child_failed):
                continue
            path = [titles[other] for other in sorted(titles) if other < depth] or [heading][: bool(heading)]
            file = f"{path.pop(0)}::" if path and _FILE.fullmatch(path[0]) else ""
            identifier = file + " > ".join([*path, name])
            if directive or good:
                tally.add(identifier, TestOutcome.SKIPPED if directive else TestOutcome.PASSED)
            else:
                failing, block = identifier or "(no name)", []
        elif match := _TITLE.fullmatch(line):
            heading = match[1]
        elif match := _SUBTEST.fullmatch(line):
            if len(titles) < _MAX_DEPTH:
                titles[len(match[1])] = match[2]
        elif match := _DURATION.fullmatch(stripped):
            tally.seconds += seconds(match[1]) / 1000
        elif stripped.startswith("Bail out!"):
            settle()
            points += 1
            tally.add("Bail out!", TestOutcome.ERROR, stripped.removeprefix("Bail out!").strip())
    settle()
    return points > 0


def _yaml_message(block: list[str]) -> str:
    for position, line in enumerate(block):
        if match := _FACT.fullmatch(line):
            if match[2] in ("|-", "|", ">", ">-"):
                rest = list(takewhile(lambda part: not _KEY.fullmatch(part), block[position + 1 : position + 8]))
                return " ".join(part.strip() for part in rest if part.strip())
            return match[2].strip("'\"")
    return block[0].strip() if block else ""


_DIAGNOSTIC = re.compile(r"([^\s:][^:]{0,300}:\d{1,9}(?::\d{1,9})?): (?:fatal )?error: (.+)")
_CTEST = re.compile(r"\d{1,3}% tests passed, (\d{1,9}) tests failed out of (\d{1,9})")
_CTEST_FAILING = re.compile(r"\s+\d{1,9} - (\S.{0,300}) \((.{1,60})\)")
_CTEST_TIME = re.compile(r"Total Test time \(real\) = +(\d{1,9}(?:\.\d{1,9})?) sec")


def _ctest(printed: list[str], tally: Tally) -> bool:
    match, _ = _last(_CTEST, printed)
    if match is None:
        return False
    failed, total = int(match[1]), int(match[2])
    names = [(name[1], name[2]) for line in printed if (name := _CTEST_FAILING.fullmatch(line))][:failed]
    for name, why in names:
        tally.add(name, TestOutcome.FAILED, why)
    tally.count(TestOutcome.FAILED, failed - len(names))
    tally.count(TestOutcome.PASSED, total - failed)
    timed, _ = _last(_CTEST_TIME, printed)
    tally.seconds += seconds(timed[1]) if timed else 0.0
    return True


def _diagnostics(printed: list[str], tally: Tally) -> bool:
    diagnostics = dict.fromkeys((match[1], match[2]) for line in printed if (match := _DIAGNOSTIC.fullmatch(line)))
    for place, message in diagnostics:
        tally.add(place, TestOutcome.ERROR, message)
    return bool(diagnostics)
