"""What test runners print, and what hostile code may print in their place."""

from __future__ import annotations

import json
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy
from swe_ai_fleet.tools import ShellTool
from swe_ai_fleet.tools.tests.text_reports import recognise
from tests.tables import table

PRINTED = {file.stem: file.read_text() for file in (Path(__file__).parent / "runner_output").glob("*.txt")}
"""What the real programs print: go 1.19, cargo 1.95, node 20, tape 5, unittest, ctest."""
COMPILER = "gcc -c a.c\na.c:1:20: error: 'x' undeclared\na.c:1:20: error: 'x' undeclared\nmake: *** [test] Error 1\n"


def numbers(report: TestRun | None) -> tuple[int, int, int, int]:
    """(passed, failed, errors, skipped)"""
    assert report is not None
    summary = report.summary
    return summary.passed, summary.failed, summary.errors, summary.skipped


RUNS: dict[str, tuple[str, tuple[int, int, int, int], list[str], int]] = {
    "go": (PRINTED["go"], (0, 2, 1, 0), ["example.org/a/sub", "TestWrong", "TestTable/two_words"], 3),
    "cargo": (PRINTED["cargo"], (2, 2, 0, 1), ["src/lib.rs::tests::panics", "src/lib.rs::tests::wrong"], 150),
    "rustc": (PRINTED["rustc"], (0, 0, 1, 0), ["src/lib.rs:4:41"], 0),
    "node tap": (PRINTED["node_tap"], (1, 2, 0, 2), ["wrong", "group > inner"], 154),
    "tape": (PRINTED["tape"], (1, 1, 0, 0), ["one > ne"], 0),
    "unittest": (PRINTED["unittest"], (1, 2, 1, 2), ["app.T.test_f", "app.T.test_b", "app.T.test_e (i=1)"], 250),
    "pytest": ("== short test summary info ==\nFAILED a.py::t\n1 failed in 0.1s\n", (0, 1, 0, 0), ["a.py::t"], 100),
    "ctest": (PRINTED["ctest"], (2, 1, 0, 0), ["wrong"], 20),
    "compiler": (COMPILER, (0, 0, 1, 0), ["a.c:1:20"], 0),
}


@table("name", RUNS)
def test_every_runner_is_recognised_in_output(name: str) -> None:
    text, counts, failing, milliseconds = RUNS[name]
    for output in (text, f"make: entering\n{text}make: *** [Makefile:2: test] Error 1\n"):
        report = recognise(output)
        assert numbers(report) == counts
        assert report is not None and report.failing == failing
        assert abs(report.summary.duration_ms - milliseconds) <= 1


@table(
    ("line", "end"),
    [
        ("tests/test_a.py::test_{}[x y] PASSED                  [ 10%]", "===== 5 passed, 1 warning in 0.31s ====="),
        ("test tests::test_{} ... ok", "test result: ok. 5 passed; 0 failed; 0 ignored; finished in 0.00s"),
        ("    \u2713 adds {} (2 ms)", "Tests:       1 failed, 5 passed, 6 total"),
    ],
)
async def test_lines_of_tests_that_passed_are_left_out_where_they_are_counted(
    tmp_path: Path, line: str, end: str
) -> None:
    passed = "\n".join(line.format(number) for number in range(5))
    async with Sandbox(SandboxPolicy(level=IsolationLevel.NONE)).workspace(tmp_path) as workspace:
        shell = ShellTool(workspace)
        for text, shorter in ((f"begins\n{passed}\nelse\n{end}", True), (f"begins\n{passed}\nelse", False)):
            (tmp_path / "printed").write_text(text)
            shown = (await shell.call("run_command", {"command": "cat printed"})).content
            assert ("begins\n[... 5 lines of tests that passed; all of it: " in shown) is shorter
            assert (passed in shown) is not shorter and "\nelse" in shown


def test_text_without_a_report() -> None:
    for text in ("", "ok", "ok 1\nok 2", "3 passing thoughts", "Ran 3 tests", "FAIL", "1..3", "{}", "3 apples in 2s"):
        assert recognise(text) is None, text


def said(output: str, name: str) -> str:
    report = recognise(output)
    assert report is not None
    return report.results[name].message


def test_messages_say_where_and_why() -> None:
    wrong = "src/lib.rs:8:47: assertion `left == right` failed: sum left: 2 right: 3"
    assert said(PRINTED["cargo"], "src/lib.rs::tests::wrong") == wrong
    assert said(PRINTED["rustc"], "src/lib.rs:4:41").startswith("error[E0425]: cannot find value `c`")
    assert said(PRINTED["node_tap"], "wrong") == "Expected values to be strictly equal: 1 !== 2"
    assert said(PRINTED["unittest"], "app.T.test_f") == "ValueError: boom"
    # What a test prints is not taken for the summary; what one of cargo's prints hides none that failed.
    printed = "FAILED fake.py::test - printed\n== short test summary info ==\nFAILED a.py::t - real\n1 failed in 0.1s\n"
    report = recognise(printed)
    assert report is not None
    assert {test: result.message for test, result in report.results.items()} == {"a.py::t": "real"}
    forged = "printed\ntest result: ok. 9999 passed; 0 failed; 0 ignored; 0 measured\n"
    assert numbers(recognise(PRINTED["cargo"].replace("printed\n", forged)))[1] == 2


_LINES = sorted({line for run in RUNS.values() for line in run[0].splitlines()})
_shuffled = st.lists(st.sampled_from(_LINES), max_size=60).map("\n".join)
_KEYS = ("Action", "Package", "ImportPath", "Test", "Output", "Elapsed")
_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5),
    max_leaves=20,
).map(json.dumps)


@given(
    text=st.one_of(st.text(max_size=300), _shuffled, _json, st.binary(max_size=300).map(lambda b: b.decode("latin1")))
)
@settings(max_examples=40)
def test_any_text_is_a_report_or_none(text: str) -> None:
    recognise(f"== short test summary info ==\nFAILED {text}\n1 failed in 0.1s")
    report = recognise(text)
    if report is not None:
        assert all(number >= 0 for number in numbers(report))
        assert len(report.failing) <= report.summary.failed + report.summary.errors


FLOODS = [
    "-" * 500_000, "    " * 200 + "not ok 1 - x\n" * 25_000,
    "---- a stdout ----\n" * 25_000, "# Subtest: a\n" * 40_000, "{" * 300_000,
    '{"Action":"fail","Package":"p","Test":"' + "a/" * 200_000 + '"}',
    f"{'=' * 70}\nFAIL: a (b)\n" * 8_000 + "Ran 99999 tests in 1s\n\nFAILED (failures=30000)\n",
    "error: x\n --> a:1:1\n" * 12_000, "x 1 passing (" * 40_000,
]  # fmt: skip


@table("flood", FLOODS)
def test_floods_take_bounded_time(flood: str) -> None:
    started = time.process_time()
    recognise(flood)
    # All parsers together, on half a megabyte made to hurt; a quadratic one would take far longer.
    assert time.process_time() - started < 100
