"""Go: `go test -json`, and the text of plain `go test` where a Makefile runs it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from swe_ai_fleet.domain.json_values import json_object
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.tools.tests.reports import lines, seconds
from swe_ai_fleet.tools.tests.runners.text_reports import Tally

_NOISE = ("=== ", "--- PASS", "--- FAIL", "--- SKIP")
_MAX_KEPT_LINES = 60
_MAX_TESTS = 100_000
_RESULT = re.compile(r" {0,64}--- (PASS|FAIL|SKIP): (\S{1,500}) \((\d{1,9}(?:\.\d{1,9})?)s\)")
_PACKAGE = re.compile(r"(ok  |FAIL|\?   )\t(\S{1,500})(?:\t(?:(\d{1,9}(?:\.\d{1,9})?)s|(.{0,200})))?")
_NOT_BUILT = re.compile(r"FAIL\t(\S{1,500}) \[(build|setup) failed\]")
PLACE = re.compile(r"(?:vet: )?([^\s:][^:]{0,300}\.go):(\d{1,9})(?::(\d{1,9}))?: (.+)")
"""What the compiler and vet print: file, line, column, message."""

_HEADING = re.compile(r"# (\S{1,500})(?: \[.{1,500}\])?")


@dataclass(slots=True)
class _Test:
    end: str = ""
    output: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Package:
    end: str = ""
    elapsed: float = 0.0
    tests: dict[str, _Test] = field(default_factory=dict[str, _Test])
    output: list[str] = field(default_factory=list[str])


def parse_go(text: str) -> TestRun | None:
    """The report in what `go test` printed, with `-json` or without; builds that fail may come as text alone."""
    return parse_go_events(text) or parse_go_output(text)


def parse_go_events(text: str) -> TestRun | None:
    """The report in what `go test -json` printed, standard error among it; None where it printed no event.

    A test with subtests is counted as its subtests. A package that could not be built, or that ended without its
    tests, is an error of its own with the compiler's `file:line:column: message`.
    """
    packages: dict[str, _Package] = {}
    builds: dict[str, list[str]] = {}
    heading, count, spoken = "", 0, False
    for line in lines(text):
        event = _event(line)
        if event is None:
            # What the compiler says comes as plain text until Go 1.23 and stands under the package's name.
            if match := _HEADING.fullmatch(line):
                heading = match[1]
            elif match := _NOT_BUILT.match(line):
                packages.setdefault(match[1], _Package()).end = "fail"
            elif heading and line:
                _keep(builds.setdefault(heading, []), line)
            continue
        spoken = True
        if event.action in ("build-output", "build-fail"):
            _keep(builds.setdefault(event.package, []), event.output)
            continue
        package = packages.setdefault(event.package, _Package())
        if event.test:
            if event.test not in package.tests and (count := count + 1) > _MAX_TESTS:
                continue
            _note(package.tests.setdefault(event.test, _Test()), event)
        elif event.action == "output":
            _keep(package.output, event.output)
        elif event.action in ("pass", "fail", "skip"):
            package.end, package.elapsed = event.action, event.elapsed
    if not spoken or not packages:
        return None
    tally = Tally()
    for name, package in packages.items():
        _count(tally, name, package, builds)
    return tally.report(sum(package.elapsed for package in packages.values()))


def parse_go_output(text: str) -> TestRun | None:
    """The report in the text of `go test`; None where it holds neither a test's end nor a failed package.

    Without `-v` passing tests are not printed, so they are not counted either.
    """
    tally, elapsed, failed = Tally(), 0.0, False
    results: list[tuple[str, str, list[str]]] = []
    heading = ""
    builds: dict[str, list[str]] = {}
    for line in lines(text):
        if match := _RESULT.fullmatch(line):
            results.append((match[2], match[1].lower(), []))
        elif match := _NOT_BUILT.fullmatch(line):
            failed = True
            tally.add(match[1], "error", _first_error(builds.get(match[1], [])), "\n".join(builds.get(match[1], [])))
        elif match := _PACKAGE.fullmatch(line):
            elapsed += seconds(match[3] or "")
        elif match := _HEADING.fullmatch(line):
            heading = match[1]
        elif heading and PLACE.fullmatch(line):
            _keep(builds.setdefault(heading, []), line)
        elif results and line.startswith((" ", "\t", "panic:")):
            _keep(results[-1][2], line)
    _leaves(tally, "", {name: _Test(end=end, output=output) for name, end, output in results})
    if not results and not failed:
        return None
    return tally.report(elapsed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    action: str
    package: str
    test: str
    output: str
    elapsed: float


def _event(line: str) -> _Event | None:
    if not line.startswith("{"):
        return None
    found = json_object(line)
    action, package = found.get("Action"), found.get("Package") or found.get("ImportPath")
    test, output, elapsed = found.get("Test", ""), found.get("Output", ""), found.get("Elapsed", 0)
    if not isinstance(action, str) or not isinstance(package, str):
        return None
    return _Event(
        action=action,
        package=package.split(" ", 1)[0][:500],
        test=test[:500] if isinstance(test, str) else "",
        output=output.rstrip("\n") if isinstance(output, str) else "",
        elapsed=seconds(str(elapsed)) if isinstance(elapsed, int | float) else 0.0,
    )


def _note(test: _Test, event: _Event) -> None:
    if event.action == "output":
        if not event.output.lstrip().startswith(_NOISE):
            _keep(test.output, event.output)
    elif event.action in ("pass", "fail", "skip"):
        test.end = event.action


def _keep(output: list[str], line: str) -> None:
    if line.strip() and len(output) < _MAX_KEPT_LINES:
        output.append(line)


def _count(tally: Tally, name: str, package: _Package, builds: dict[str, list[str]]) -> None:
    before = tally.failing
    _leaves(tally, name, package.tests)
    if package.end == "fail" and tally.failing == before:
        said = builds.get(name, []) or [line for line in package.output if line.split("\t")[0] != "FAIL"]
        tally.add(name, "error", _first_error(said) or "the package failed outside of its tests", "\n".join(said))


def _leaves(tally: Tally, package: str, tests: dict[str, _Test]) -> None:
    """Count tests without subtests, and those that failed though no subtest of theirs did."""
    parents = {name.rpartition("/")[0] for name in tests}
    failed = {name for name, test in tests.items() if test.end in ("fail", "")}
    blamed = {name.rpartition("/")[0] for name in failed}
    for name, test in tests.items():
        if name in parents and (name not in failed or name in blamed):
            continue
        identifier = f"{package}::{name}" if package else name
        if name in failed:
            message = "" if test.end else "the test did not finish"
            tally.add(identifier, "failure" if test.end else "error", message or _last(test), "\n".join(test.output))
        else:
            tally.add(identifier, "skipped" if test.end == "skip" else "passed")


def _last(test: _Test) -> str:
    panic = next((line for line in test.output if line.startswith("panic:")), "")
    return panic or (test.output[-1].strip() if test.output else "")


def _first_error(said: list[str]) -> str:
    return next((line for line in said if PLACE.fullmatch(line)), said[0] if said else "")
