"""The text of plain `go test`, where a Makefile runs it or no event came."""

from __future__ import annotations

import re

from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.tools.tests.reports import lines, seconds
from swe_ai_fleet.tools.tests.runners.text_reports import Tally

_MAX_KEPT_LINES = 60
_RESULT = re.compile(r" {0,64}--- (PASS|FAIL|SKIP): (\S{1,500}) \((\d{1,9}(?:\.\d{1,9})?)s\)")
_PACKAGE = re.compile(r"(ok  |FAIL|\?   )\t(\S{1,500})(?:\t(?:(\d{1,9}(?:\.\d{1,9})?)s|(.{0,200})))?")
_NOT_BUILT = re.compile(r"FAIL\t(\S{1,500}) \[(build|setup) failed\]")
_PLACE = re.compile(r"(?:vet: )?([^\s:][^:]{0,300}\.go):(\d{1,9})(?::(\d{1,9}))?: (.+)")
"""What the compiler and vet print: file, line, column, message."""

_HEADING = re.compile(r"# (\S{1,500})(?: \[.{1,500}\])?")


def parse_go_output(text: str) -> TestRun | None:
    """The report in the text of `go test`; None where it holds neither a test's end nor a failed package.

    Without `-v` passing tests are not printed, so they are not counted either.
    """
    tally, elapsed, failed = Tally(), 0.0, False
    results: dict[str, tuple[str, list[str]]] = {}
    output: list[str] | None = None
    heading = ""
    builds: dict[str, list[str]] = {}
    for line in lines(text):
        if match := _RESULT.fullmatch(line):
            output = []
            results[match[2]] = (match[1], output)
        elif match := _NOT_BUILT.fullmatch(line):
            failed = True
            tally.add(match[1], "error", _first_error(builds.get(match[1], [])), "\n".join(builds.get(match[1], [])))
        elif match := _PACKAGE.fullmatch(line):
            elapsed += seconds(match[3] or "")
        elif match := _HEADING.fullmatch(line):
            heading = match[1]
        elif heading and _PLACE.fullmatch(line):
            _keep(builds.setdefault(heading, []), line)
        elif output is not None and line.startswith((" ", "\t", "panic:")):
            _keep(output, line)
    _leaves(tally, results)
    if not results and not failed:
        return None
    return tally.report(elapsed)


def _keep(output: list[str], line: str) -> None:
    if line.strip() and len(output) < _MAX_KEPT_LINES:
        output.append(line)


def _leaves(tally: Tally, tests: dict[str, tuple[str, list[str]]]) -> None:
    """Count tests without subtests, and those that failed though no subtest of theirs did."""
    parents = {name.rpartition("/")[0] for name in tests}
    blamed = {name.rpartition("/")[0] for name, (end, _) in tests.items() if end == "FAIL"}
    for name, (end, output) in tests.items():
        if name in parents and (end != "FAIL" or name in blamed):
            continue
        if end == "FAIL":
            reason = next((line for line in output if line.startswith("panic:")), "") or (output or [""])[-1].strip()
            tally.add(name, "failure", reason, "\n".join(output))
        else:
            tally.add(name, "skipped" if end == "SKIP" else "passed")


def _first_error(output: list[str]) -> str:
    return next((line for line in output if _PLACE.fullmatch(line)), output[0] if output else "")
