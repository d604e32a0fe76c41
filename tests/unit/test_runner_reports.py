"""What test runners and linters print, and which linters a repository configures."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy
from swe_ai_fleet.tools import ShellTool
from swe_ai_fleet.tools.tests import (
    changed_runs,
    configured_linters,
    parse_format,
    parse_lines,
)
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


SAMPLES = Path(__file__).parent / "linter_output"
HOOKS = (SAMPLES / "hooks.yaml").read_text()
LINES = (SAMPLES / "lines.txt").read_text()
"""As ruff, flake8, pylint, mypy, pyright, go vet and clippy print them."""
GIT, GOFMT, RUSTFMT = ((SAMPLES / f"{name}.diff").read_text() for name in ("git", "gofmt", "rustfmt"))


def names(files: Mapping[str, str]) -> list[str]:
    return [linter.name for linter in configured_linters(files, lambda path: files.get(path, ""))]


@table(
    ("files", "linters"),
    [
        ({}, []),
        ({"setup.py": "", "pyproject.toml": "[project]\n[tool.black]\n[tool.pytest.ini_options]\n"}, []),
        ({"pyproject.toml": "[tool.ruff.lint]\nselect = ['F']\n"}, ["ruff"]),
        ({".ruff.toml": "[format]\nquote-style = 'single'\n"}, ["ruff", "ruff format"]),
        ({"setup.cfg": "[metadata]\n[flake8]\nmax-line-length = 88\n[mypy-tests.*]\n"}, ["flake8", "mypy"]),
        ({"tox.ini": "[testenv:x]\ndeps =\n  flake8\n  mypy\ncommands = pytest\n"}, []),
        ({"pyproject.toml": "[[tool.mypy.overrides]]\n[tool.pyright]\n"}, ["mypy", "pyright"]),
        ({"noxfile.py": "session.install('mypy')\nsession.run('flake8', 'src', *session.posargs)\n"}, ["flake8"]),
        ({"Makefile": "lint:\n\t@$(VENV)/bin/python -m flake8 a.py && uv pip install mypy\n"}, ["flake8"]),
        ({"Makefile": "lint: ruff\n\techo ruff\n\tpip install ruff\n\tmake -C docs ruff\n"}, []),
        ({".pre-commit-config.yaml": HOOKS}, ["ruff format", "pylint", "mypy"]),
        ({"tests/fixtures/x/ruff.toml": "", "vendor/y/.flake8": ""}, []),
    ],
)
def test_linters_of_a_python_repository(files: dict[str, str], linters: list[str]) -> None:
    assert names({"a.py": "", **files}) == linters


def test_hostile_settings_cost_little() -> None:
    started_at = time.process_time()
    nested = {".pre-commit-config.yaml": "repos: " + "[" * 10_000, "package.json": "[" * 10_000}
    grown = (f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 40))
    merged = "a0: &a0 {id: ruff}\n" + "".join(grown) + "repos:\n- hooks: [{id: mypy}]\n"
    made = "x:\n\tflake8 " + "a*" * 10_000 + "\n\t" + "ruff x;" * 5_000
    long = {"Makefile": made, "tox.ini": "commands =" + " " * 50_000}
    assert names({"a.py": "", **nested}) == []
    assert names({"a.py": "", ".pre-commit-config.yaml": merged}) == ["mypy"]
    assert names({**{f"d{n}/a.py": "" for n in range(1_500)}, **long}) == ["ruff", "flake8"]
    assert time.process_time() - started_at < 30


def test_findings_in_lines() -> None:
    assert [str(finding) for finding in parse_lines(LINES * 2, "/workspace", "sub") or ()] == [
        "sub/a.py:1: F401 `os` imported but unused", "b.py:2: invalid-syntax Expected an expression",
        "sub/a.py:3:1: E302 expected 2 blank lines, found 0",
        "sub/a.py:4: W0613 Unused argument 'x' (unused-argument)",
        'sub/a.py:5:12: return-value Incompatible return value type (got "str", expected "int")',
        'sub/c.py:6:7: reportUndefinedVariable "x" is not defined', "sub/d.go:7:28: undeclared name: thing",
        "sub/e.go:8: self-assignment", "sub/src/lib.rs:9:5: unneeded `return` statement",
    ]  # fmt: skip


def test_runs_of_changed_lines() -> None:
    assert list(changed_runs(GIT)) == [
        ("b/a.py", range(4, 4), range(4, 6)), ("b/a.py", range(9, 11), range(12, 12)),
        ("b/a.py", range(20, 21), range(20, 21)), ("b/b.py", range(1, 1), range(1, 4)),
    ]  # fmt: skip
    gofmt, rustfmt = parse_format(GOFMT, "/workspace", "go") or (), parse_format(RUSTFMT, "/workspace") or ()
    assert [(each.path, each.line, each.last) for each in gofmt] == [("go/a.go", 2, 1), ("go/a.go", 3, 4)]
    assert [(each.path, each.line) for each in rustfmt] == [("src/lib.rs", 2), ("src/m.rs", 7)]
    assert list(changed_runs("")) == []
