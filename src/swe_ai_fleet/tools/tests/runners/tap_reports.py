"""The Test Anything Protocol, as node, tape, tap and prove write it."""

from __future__ import annotations

import re
from itertools import takewhile

from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.tools.tests.lines import lines
from swe_ai_fleet.tools.tests.runners.tally import End, Tally

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
    said: list[str] = []
    in_block = False
    heading = ""

    def settle() -> None:
        nonlocal failing
        if failing is not None:
            tally.add(failing[0], failing[1], _message(said), "\n".join(said))
        failing = None

    for line in lines(text):
        stripped = line.strip()
        if in_block:
            in_block = stripped != "..."
            if in_block and failing is not None and len(said) < _MAX_KEPT_LINES:
                said.append(line)
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
                failing, said = (identifier, "failure"), []
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


def _message(said: list[str]) -> str:
    for position, line in enumerate(said):
        if match := _FACT.fullmatch(line):
            if match[2] in ("|-", "|", ">", ">-"):
                rest = list(takewhile(lambda part: not _KEY.fullmatch(part), said[position + 1 : position + 8]))
                return " ".join(part.strip() for part in rest if part.strip())
            return match[2].strip("'\"")
    return said[0].strip() if said else ""
