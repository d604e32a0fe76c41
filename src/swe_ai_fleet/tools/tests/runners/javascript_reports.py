"""Reports of JavaScript runners: jest's and mocha's JSON, node's JUnit, their printed summaries, and TAP.

The Test Anything Protocol is read as node, tape, tap and prove write it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile

from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.tools.tests.reports import lines, seconds
from swe_ai_fleet.tools.tests.runners.text_reports import End, Tally

_MAX_KEPT_LINES = 60
_MAX_DEPTH = 64
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


def parse_tap(text: str) -> TestRun | None:
    """The report in a TAP stream; None where there is neither its version nor a plan, or not one test point.

    A test with subtests counts as its subtests; a comment before points is their title, as tape writes it. A test whose
    subtests are a file's, as tap writes them, has its file's name first: `file::title > title`.
    """
    tally, marked, points, duration = Tally(), False, 0, 0.0
    titles: dict[int, str] = {}
    below: dict[int, bool] = {}  # by depth: whether points deeper than it were seen since its last one, and failed
    failing: tuple[str, End] | None = None
    block: list[str] = []
    in_block = False
    heading = ""

    def settle() -> None:
        nonlocal failing
        if failing is not None:
            tally.add(failing[0], failing[1], _message(block), "\n".join(block))
        failing = None

    for line in lines(text):
        stripped = line.strip()
        if in_block:
            in_block = stripped != "..."
            if in_block and failing is not None and len(block) < _MAX_KEPT_LINES:
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
            for other in [other for other in titles if other > depth]:
                del titles[other]
            directive = _DIRECTIVE.search(title)
            name = title[: directive.start()].strip() if directive else title.strip()
            below[depth] = below.get(depth, False) or not (good or directive) or child_failed
            if deeper and (good or child_failed):
                continue
            path = [titles[other] for other in sorted(titles) if other < depth]
            path = path or ([heading] if heading else [])
            file = f"{path.pop(0)}::" if path and _FILE.fullmatch(path[0]) else ""
            identifier = file + " > ".join([*path, name])
            if directive:
                tally.add(identifier, "skipped")
            elif good:
                tally.add(identifier, "passed")
            else:
                failing, block = (identifier, "failure"), []
        elif match := _TITLE.fullmatch(line):
            heading = match[1]
        elif match := _SUBTEST.fullmatch(line):
            if len(titles) < _MAX_DEPTH:
                titles[len(match[1])] = match[2]
        elif _MARK.fullmatch(stripped):
            marked = True
        elif match := _DURATION.fullmatch(stripped):
            duration = float(match[1])
        elif stripped.startswith("Bail out!"):
            settle()
            tally.add("Bail out!", "error", stripped.removeprefix("Bail out!").strip())
    settle()
    return tally.report(duration / 1000) if marked and points else None


def _message(block: list[str]) -> str:
    for position, line in enumerate(block):
        if match := _FACT.fullmatch(line):
            if match[2] in ("|-", "|", ">", ">-"):
                rest = list(takewhile(lambda part: not _KEY.fullmatch(part), block[position + 1 : position + 8]))
                return " ".join(part.strip() for part in rest if part.strip())
            return match[2].strip("'\"")
    return block[0].strip() if block else ""


_MAX_TESTS = 100_000
_JEST_ENDS: Mapping[object, End] = {
    "passed": "passed",
    "failed": "failure",
    "pending": "skipped",
    "skipped": "skipped",
    "disabled": "skipped",
    "todo": "skipped",
}
_JEST_SYNTAX = re.compile(r"SyntaxError: (/[^:]{1,1000}): (.{1,300}) \((\d{1,9}:\d{1,9})\)")
_JEST_LINE = re.compile(r"Tests: +(.{1,200}), (\d{1,9}) total")
_JEST_TIME = re.compile(r"Time: +(\d{1,9}(?:\.\d{1,9})?) s.*")
_JEST_FAILING = re.compile(r" {2}● (.{1,400})")
_VITEST_LINE = re.compile(r" +Tests +(.{1,200}) \(\d{1,9}\)")
_VITEST_FAILING = re.compile(r" FAIL {2}(.{1,400})")
_VITEST_TIME = re.compile(r" +Duration +(\d{1,9}(?:\.\d{1,9})?)(ms|s)\b.*")
_MOCHA_COUNT = re.compile(r" {2}(\d{1,9}) (passing|pending|failing)(?: \((\d{1,9})(ms|s|m)\))?")
_MOCHA_FAILING = re.compile(r" {2}(\d{1,9})\) (.{1,300})")
_NODE_COUNT = re.compile(r"(?:\u2139|#) (pass|fail|cancelled|skipped|todo|duration_ms) (\d{1,12}(?:\.\d{1,12})?)")
_NODE_UNEXPLAINED = "test failed"
_NODE_PLACE = re.compile(r"(?:file://)?(/[^:]{1,1000}):(\d{1,9})")
_NODE_ERROR = re.compile(r"(?:Uncaught )?\w{0,60}Error\b")
_COUNT = re.compile(r"(\d{1,9}) (failed|passed|skipped|todo|pending)")


def parse_jest_output(text: str) -> TestRun | None:
    """The report in what jest printed; None without its line of counts."""
    return _summarised(lines(text), _JEST_LINE, _JEST_FAILING, _JEST_TIME)


def parse_vitest_output(text: str) -> TestRun | None:
    """The report in what vitest printed; None without its line of counts."""
    return _summarised(lines(text), _VITEST_LINE, _VITEST_FAILING, _VITEST_TIME)


def parse_mocha_output(text: str) -> TestRun | None:
    """The report in what mocha's usual reporter printed; None without its counts."""
    counts: dict[str, int] = {}
    duration, failing = 0.0, dict[str, str]()
    after, number = False, ""
    for line in lines(text):
        if match := _MOCHA_COUNT.fullmatch(line):
            counts[match[2]] = int(match[1])
            if match[2] == "passing":
                failing, after, number = {}, True, ""
                duration = int(match[3] or 0) * {"ms": 0.001, "s": 1.0, "m": 60.0}.get(match[4] or "", 0.0)
        elif after and (match := _MOCHA_FAILING.fullmatch(line)) and len(failing) < 1000:
            failing[match[1]], number = match[2].rstrip(":"), "" if line.endswith(":") else match[1]
        elif number and line.startswith("       "):
            # The titles of the suites around a test stand on lines of their own before it.
            failing[number] = f"{failing[number]} {line.strip().rstrip(':')}"[:400]
            number = "" if line.endswith(":") else number
        else:
            number = ""
    if "passing" not in counts:
        return None
    tally = Tally()
    tally.count("passed", counts["passing"])
    tally.count("skipped", counts.get("pending", 0))
    _count_failures(tally, list(failing.values()), counts.get("failing", 0))
    return tally.report(duration)


def parse_node_output(text: str) -> TestRun | None:
    """The counts that node's own test runner prints at its end, with names of what failed; None without them."""
    counts: dict[str, float] = {}
    failing: list[str] = []
    listing = False
    for line in lines(text):
        if match := _NODE_COUNT.fullmatch(line):
            counts[match[1]] = seconds(match[2])
        elif line == "✖ failing tests:":
            listing, failing = True, []
        elif listing and line.startswith("✖ ") and len(failing) < 1000:
            failing.append(line[2:].rsplit(" (", 1)[0])
    if not {"pass", "fail"} <= counts.keys():
        return None
    tally = Tally()
    tally.count("passed", int(counts["pass"]))
    tally.count("skipped", int(counts.get("skipped", 0) + counts.get("todo", 0)))
    _count_failures(tally, failing, int(counts["fail"] + counts.get("cancelled", 0)))
    return tally.report(counts.get("duration_ms", 0.0) / 1000)


def _summarised(
    output: list[str], counts: re.Pattern[str], failing: re.Pattern[str], time: re.Pattern[str]
) -> TestRun | None:
    position = next((place for place in range(len(output) - 1, -1, -1) if counts.fullmatch(output[place])), None)
    if position is None:
        return None
    match = counts.fullmatch(output[position])
    numbers = {word: int(number) for number, word in _COUNT.findall(match[1] if match else "")}
    timed = next((end for line in output[position:] if (end := time.fullmatch(line))), None)
    scale = 0.001 if timed and timed.re.groups > 1 and timed[2] == "ms" else 1.0
    names = dict.fromkeys(named[1] for line in output[:position] if (named := failing.fullmatch(line)))
    tally = Tally()
    tally.count("passed", numbers.get("passed", 0))
    tally.count("skipped", sum(numbers.get(word, 0) for word in ("skipped", "todo", "pending")))
    _count_failures(tally, list(names), numbers.get("failed", 0))
    return tally.report(seconds(timed[1]) * scale if timed else 0.0)


def _count_failures(tally: Tally, names: list[str], failed: int) -> None:
    """As many failures as were counted, by name as far as names are known; what is named beyond that could not run."""
    for position, name in enumerate(names):
        tally.add(name, "failure" if position < failed else "error")
    tally.count("failure", failed - len(names))
