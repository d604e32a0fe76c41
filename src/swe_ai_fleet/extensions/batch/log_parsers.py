"""SWE-bench's log parsers by their names: each reads a status for each test from the output of a test run.

Sources: `swebench.harness.log_parsers` and `swebench.harness.grading` of swebench 5.0 (MIT). Parsers whose logs need
more than a line at a time (Karma, Maven, Gradle, ...) are missing; a record that names one of those is not run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

PASSED, FAILED, SKIPPED, ERROR, XFAIL = "PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"
_STATUSES = (FAILED, PASSED, SKIPPED, ERROR, XFAIL)
START, END, EXIT_CODE = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
_FAULTS = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
_EXIT_CODE = re.compile(rf"{EXIT_CODE}:\s*(-?\d+)")
# Evidence that a suite ran at all. Every count is above zero: a runner without tests prints a summary too.
_SUITE_RAN = re.compile(
    r"Executed [1-9]\d* of \d+|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)|[1-9]\d* passing|Tests:\s+[1-9]\d*"
    r"|Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total|^# tests [1-9]\d*|[1-9]\d* specs?, \d+ failures?|': ok$",
    re.MULTILINE,
)
_LONGEST_LINE = 4_000
"""Longer lines are ignored. Every pattern below takes at most time quadratic in this."""

Statuses = dict[str, str]


def _lines(log: str) -> Iterator[str]:
    return (line for line in log.split("\n") if len(line) <= _LONGEST_LINE)


def _by_line(pattern: str, **statuses: str) -> Callable[[str], Statuses]:
    """A parser of matching lines; the group `name` is the test, and the other matched group selects its status."""
    expression = re.compile(pattern)

    def parse(log: str) -> Statuses:
        matches = filter(None, (expression.fullmatch(line.strip()) for line in _lines(log)))
        return {match["name"]: statuses[word] for match in matches for word in statuses if match[word]}

    return parse


def _pytest(name: Callable[[str], str], replaced: Mapping[str, str]) -> Callable[[str], Statuses]:
    """A parser of pytest's short summary (`-rA`); `name` converts a test's id to that of records."""

    def parse(log: str) -> Statuses:
        statuses: Statuses = {}
        for line in _lines(log):
            for old, new in replaced.items():
                line = line.replace(old, new)
            if not line.startswith(_STATUSES):
                continue
            words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split()
            if len(words) > 1 and not _skip_count(words):
                statuses[name(words[1])] = words[0]
        return statuses

    return parse


def _skip_count(words: list[str]) -> bool:
    """Whether a line is pytest's `SKIPPED [3] path:line: reason`."""
    return words[0] == SKIPPED and re.fullmatch(r"\[\d+\]", words[1]) is not None


def _short_option(name: str) -> str:
    """A test's id in which a parameter that is a path is reduced to its last part."""
    main, bracket, rest = name.partition("[")
    option, closed, _ = rest.rpartition("]")
    if not bracket or not closed:
        return name
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = f"/{option.rsplit('/', 1)[1]}"
    return f"{main}[{option}]"


def _pytest_v2(log: str) -> Statuses:
    """A parser for later versions: names may contain spaces, lines may be coloured, and the status may come last."""
    statuses: Statuses = {}
    for line in _lines(log):
        line = re.sub(r"\[(\d+)m", "", line).translate(dict.fromkeys(range(1, 32)))
        if line.startswith(_STATUSES):
            words = (line.split(" - ", 1)[0] if line.startswith(FAILED) else line).split()
            if len(words) > 1 and not _skip_count(words):
                statuses[" ".join(words[1:])] = words[0]
        elif line.endswith(_STATUSES):
            words = line.split()
            if len(words) > 1:
                statuses[" ".join(words[:-1])] = words[-1]
    return statuses


_DJANGO_ENDS = (
    *((end, PASSED) for end in (" ... ok", " ... OK", " ...  OK")),
    *((" ... FAIL", FAILED), (" ... ERROR", ERROR)),
)
_DJANGO_STARTS = (("FAIL:", FAILED), ("ERROR:", ERROR))
_DJANGO_INTERRUPTED = re.compile(
    r"^(.*?)\s\.\.\.\s(?:Testing against Django installed in [^\n]* silenced\)\.|Internal Server Error: /.*/"
    r"|System check identified no issues \(0 silenced\))\nok$",
    re.MULTILINE,
)


def _django(log: str) -> Statuses:
    statuses: Statuses = {}
    earlier = ""
    for line in map(str.strip, _lines(log)):
        if "--version is equivalent to version" in line:
            statuses["--version is equivalent to version"] = PASSED
        if " ... " in line:
            earlier = line.split(" ... ")[0]
        for end, status in _DJANGO_ENDS:
            if line.endswith(end):
                line = line.removeprefix("Applying sites.0002_alter_domain_unique...")
                statuses[line.rsplit(end, 1)[0] if status == PASSED else line.split(end)[0]] = status
                break
        if " ... skipped" in line:
            statuses[line.split(" ... skipped")[0]] = SKIPPED
        for start, status in _DJANGO_STARTS:
            if line.startswith(start) and len(line.split()) > 1:
                statuses[line.split()[1]] = status
        if line.startswith("ok") and earlier:
            # The test printed something between its name and its status.
            statuses[earlier] = PASSED
    statuses |= {match[1]: PASSED for match in _DJANGO_INTERRUPTED.finditer("\n".join(_lines(log)))}
    return statuses


def _seaborn(log: str) -> Statuses:
    statuses: Statuses = {}
    for line in _lines(log):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith((FAILED, PASSED)):
            statuses[words[1]] = FAILED if line.startswith(FAILED) else PASSED
        elif words[1] == PASSED and f" {PASSED} " in line:
            statuses[words[0]] = PASSED
    return statuses


def _sympy(log: str) -> Statuses:
    statuses: Statuses = {}
    ends = {" E": ERROR, " F": FAILED, " ok": PASSED}
    for line in _lines(log):
        # A headline: `_____ sympy/core/tests/test_x.py:test_y _____`.
        file, module, rest = line.partition(" ")[2].rpartition(".py:")
        test, space, _ = rest.rpartition(" ")
        if module and space:
            statuses[f"{file}.py:{test}"] = FAILED
        line = line.strip()
        if line.startswith("test_"):
            statuses |= {line.split()[0]: status for end, status in ends.items() if line.endswith(end)}
    return statuses


def _phpunit(log: str) -> Statuses:
    statuses: Statuses = {}
    suite = "None"
    for line in _lines(log):
        if match := re.fullmatch(r"(\w.+) \(.+\)", line):
            suite = match[1]
        elif match := re.fullmatch(r"\s*([✔✘↩])\s*(.*)", line):
            statuses[f"{suite} > {match[2]}"] = {"✔": PASSED, "✘": FAILED}.get(match[1], SKIPPED)
    return statuses


_plain = _pytest(str, {})
_options = _pytest(_short_option, {})
_PASS_OR_FAIL = {"good": PASSED, "bad": FAILED}
_AND_SKIP = {**_PASS_OR_FAIL, "skip": SKIPPED}
_PYTHON: Mapping[str, tuple[str, ...]] = {
    "pytest": ("astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"),
    "pytest_options": ("pydicom", "requests", "pylint"),
    "pytest_v2": ("astropy", "scikit", "sphinx"),
}
_parsers: dict[str, Callable[[str], Statuses]] = {
    "pytest": _plain,
    "pytest_options": _options,
    "pytest_v2": _pytest_v2,
    "matplotlib": _pytest(str, {"MouseButton.LEFT": "1", "MouseButton.RIGHT": "3"}),
    "django": _django,
    "seaborn": _seaborn,
    "sympy": _sympy,
    "phpunit": _phpunit,
    "gotest": _by_line(r"--- (?:(?P<good>PASS)|(?P<bad>FAIL)|(?P<skip>SKIP)): (?P<name>.+) \([^()]+\)", **_AND_SKIP),
    "cargo": _by_line(r"test\s+(?P<name>\S+)\s+\.\.\.\s+(?:(?P<good>ok)|(?P<bad>FAILED))", **_PASS_OR_FAIL),
    "googletest": _by_line(r".*?\[\s*(?:(?P<good>OK)|(?P<bad>FAILED))\s*\]\s(?P<name>.*)\s\([^()]*\)", **_PASS_OR_FAIL),
    "redis": _by_line(
        r"\[(?:(?P<good>ok)|(?P<bad>err)|(?P<skip>skip|ignore))\]:\s(?P<name>.+?)"
        r"(?:(?(bad)\s+in\s+\S+))?(?:\s\(\d+\s*m?s\))?",
        **_AND_SKIP,
    ),
    "jq": _by_line(r"(?:(?P<good>PASS)|(?P<bad>FAIL)):\s(?P<name>.+)", **_PASS_OR_FAIL),
    "micropython_test": _by_line(r"(?:(?P<good>pass)|(?P<bad>FAIL)|(?P<skip>skip))\s+(?P<name>.+)", **_AND_SKIP),
    "ant": _by_line(r"\[junit\]\s+\[(?:(?P<good>PASS)|(?P<bad>FAIL|ERR))\]\s+(?P<name>.*)", **_PASS_OR_FAIL),
    "rspec_transformed_json": _by_line(r"(?P<name>.+) - (?:(?P<good>passed)|(?P<bad>failed)).*", **_PASS_OR_FAIL),
    "tap": _by_line(r"(?:(?P<good>ok)|(?P<bad>not ok)) \d+ (?P<name>.+)", **_PASS_OR_FAIL),
    "jest": _by_line(r"(?:(?P<good>✓)|(?P<bad>✕)|(?P<skip>○))\s\s*(?P<name>\S.*?)\s*(?:\s\(\d+\s*m?s\))?", **_AND_SKIP),
    "jest_json": _by_line(r"\[(?:(?P<good>PASSED)|(?P<bad>FAILED))\]\s(?P<name>.+)", **_PASS_OR_FAIL),
    "vitest": _by_line(
        r"(?:(?P<good>✓)|(?P<bad>\xd7)|(?P<skip>↓))\s(?P<name>.+?)(?:\s(?:\d+\s*m?s?|\[skipped\]))?", **_AND_SKIP
    ),
}
PARSERS: Mapping[str, Callable[[str], Statuses]] = {
    f"parse_log_{name}": parser for family, parser in _parsers.items() for name in (family, *_PYTHON.get(family, ()))
}
"""By the names that records have in `log_parser`."""


def recording_exit_code(script: str) -> str:
    """An evaluation script that also prints the tests' exit code, after the marker that ends their output."""
    lines = script.strip().split("\n")
    for number, line in enumerate(lines):
        if END in line:
            exit_line = f'echo "{EXIT_CODE}: $FLEET_TEST_EXIT_CODE"'
            return "\n".join([*lines[:number], "FLEET_TEST_EXIT_CODE=$?", line, exit_line, *lines[number + 1 :], ""])
    return script


def read_log(log: str, log_parser: str) -> Statuses | None:
    """The status of each test that an evaluation script ran; None for a log that cannot be trusted.

    A patch can print lines that look like results: where the tests' exit code is not 0 and no test failed, the log is
    forged.
    """
    if any(fault in log for fault in _FAULTS) or START not in log or END not in log:
        return None
    parse = PARSERS[log_parser]
    statuses = parse(log.split(START)[1].split(END)[0]) or parse(log)
    if not statuses and not _SUITE_RAN.search(log):
        return None
    code = _EXIT_CODE.search(log)
    failed = any(status in (FAILED, ERROR) for status in statuses.values())
    return None if statuses and code is not None and int(code[1]) and not failed else statuses


def _status(test: str, statuses: Mapping[str, str]) -> str:
    """A test's status, or empty; an id that a record cut within its parameters matches by its beginning."""
    if test in statuses or test.count("[") <= test.count("]"):
        return statuses.get(test, "")
    matching = [status for name, status in statuses.items() if name.startswith(test)]
    return matching[0] if matching and len({status in (PASSED, XFAIL) for status in matching}) == 1 else ""


def grade(
    statuses: Mapping[str, str], fail_to_pass: tuple[str, ...], pass_to_pass: tuple[str, ...], *, fail_only: bool
) -> dict[str, dict[str, list[str]]]:
    """The tests that succeeded and those that did not, as in SWE-bench's `report.json`.

    With `fail_only` a test counts as passed unless it is reported as failed. A skipped test is neither a regression nor
    a solution.
    """
    graded: dict[str, dict[str, list[str]]] = {}
    for key, tests, good in (
        ("FAIL_TO_PASS", fail_to_pass, (PASSED, XFAIL)),
        ("PASS_TO_PASS", pass_to_pass, (PASSED, XFAIL, SKIPPED)),
    ):
        groups: dict[str, list[str]] = {"success": [], "failure": []}
        for test in tests:
            passed = statuses.get(test) != FAILED if fail_only else _status(test, statuses) in good
            groups["success" if passed else "failure"].append(test)
        graded[key] = groups
    return graded
