"""What pytest prints, read as results, and what is kept of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.test_run import TestOutcome
from swe_ai_fleet.tools.tests.reports import (
    MAX_ID_CHARS,
    MAX_MESSAGE_CHARS,
    MAX_TRACEBACK_CHARS,
    bounded,
    parse_pytest_output,
    test_result,
)

SUITE = """
import pytest

def test_passes(): pass

@pytest.mark.parametrize("x", ["a - b", "c]d"])
def test_parameter(x): assert x == "q", "two\\nlines"

class TestOuter:
    class TestInner:
        def test_method(self): raise ValueError("boom")

    @pytest.mark.skip
    def test_skipped(self): pass

    @pytest.mark.xfail
    def test_expected(self): assert 0

@pytest.fixture
def broken(): raise RuntimeError("no set-up")

def test_set_up(broken): pass

@pytest.fixture
def broken_end():
    yield
    raise RuntimeError("no tear-down")

def test_fails_twice(broken_end): assert 0
"""
FAILING = {
    "tests/test_bad.py",
    "tests/test_a.py::test_parameter[a - b]",
    "tests/test_a.py::test_parameter[c]d]",
    "tests/test_a.py::TestOuter::TestInner::test_method",
    "tests/test_a.py::test_set_up",
    "tests/test_a.py::test_fails_twice",
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a real pytest over a suite with every kind of end."""
    root: Path = tmp_path_factory.mktemp("suite")
    (root / "tests").mkdir()
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "tests" / "test_a.py").write_text(SUITE)
    (root / "tests" / "test_bad.py").write_text("import nosuch\n")
    argv = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables = {**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(argv, cwd=root, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_output_of_a_real_run(printed: str) -> None:
    report = parse_pytest_output(printed)
    assert report is not None
    summary = report.summary
    # pytest's own line counts a test that fails and whose tear-down fails as two.
    assert (summary.passed, summary.failed, summary.errors, summary.skipped) == (1, 4, 3, 2)
    assert set(summary.failing) == FAILING


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("===== 3 passed in 0.01s =====", (3, 0, 0, 0)),
        ("1 failed, 2 passed, 4 skipped, 1 xpassed, 2 warnings in 61.20s (0:01:01)", (3, 1, 0, 4)),
        ("no tests ran in 0.00s", (0, 0, 0, 0)),
        ("10 deselected in 0.50s", (0, 0, 0, 0)),
        ("\x1b[31m\x1b[1m1 error\x1b[0m\x1b[31m in 0.10s\x1b[0m", (0, 0, 1, 0)),
    ],
)
def test_lines_of_counts(line: str, counts: tuple[int, int, int, int]) -> None:
    report = parse_pytest_output(f"....\n{line}\n")
    assert report is not None
    summary = report.summary
    assert (summary.passed, summary.failed, summary.errors, summary.skipped) == counts


@pytest.mark.parametrize("text", ["", "ok", "3 apples in 2s", "5 passed", "passed in 3s"])
def test_output_without_counts_is_no_report(text: str) -> None:
    assert parse_pytest_output(text) is None


def test_what_a_test_prints_is_not_taken_for_the_summary() -> None:
    text = "FAILED fake.py::test - printed\n== short test summary info ==\nFAILED a.py::t - real\n1 failed in 0.1s\n"
    report = parse_pytest_output(text)
    assert report is not None
    assert {test: result.message for test, result in report.results.items()} == {"a.py::t": "real"}


def test_what_is_kept_of_a_test_is_bounded() -> None:
    long = "x" * 50_000
    result = test_result(TestOutcome.FAILED, long, f"{long}\n" * 50)
    assert len(result.message) <= MAX_MESSAGE_CHARS
    assert len(result.traceback) <= MAX_TRACEBACK_CHARS
    assert len({bounded(long + end) for end in "ab"}) == 2
    assert len(bounded(long)) <= MAX_ID_CHARS


def test_a_result_without_a_message_has_the_last_line_of_its_traceback() -> None:
    assert test_result(TestOutcome.ERROR, "", "a.py:1: in f\nE   ValueError: no\n\n").message == "ValueError: no"
    assert test_result(TestOutcome.PASSED, "said", "traceback").message == ""


@given(st.text(max_size=500))
def test_any_text_is_a_report_or_none(text: str) -> None:
    parse_pytest_output(text)
    parse_pytest_output(f"== short test summary info ==\nFAILED {text}\n1 failed in 0.1s")
