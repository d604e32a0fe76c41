"""Reading test reports: what real runners write, and what hostile code may write in their place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.tools.tests.reports import (
    MAX_ID_CHARS,
    MAX_MESSAGE_CHARS,
    MAX_REPORT_BYTES,
    MAX_TRACEBACK_CHARS,
    ReportUnreadable,
    parse_junit,
    parse_pytest_output,
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
    "tests/test_bad.py": "No module named 'nosuch'",
    "tests/test_a.py::test_parameter[a - b]": "two",
    "tests/test_a.py::test_parameter[c]d]": "two",
    "tests/test_a.py::TestOuter::TestInner::test_method": "ValueError: boom",
    "tests/test_a.py::test_set_up": "no set-up",
    "tests/test_a.py::test_fails_twice": "assert 0",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """The XML and the output of a real pytest over a suite with every kind of end."""
    root: Path = tmp_path_factory.mktemp("suite")
    (root / "tests").mkdir()
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "tests" / "test_a.py").write_text(SUITE)
    (root / "tests" / "test_bad.py").write_text("import nosuch\n")
    argv = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
    argv += ["-o", "junit_family=xunit1", f"--junitxml={root / 'report.xml'}"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables = {**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(argv, cwd=root, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return (root / "report.xml").read_bytes(), done.stdout


def test_junit_of_a_real_run(ran: tuple[bytes, str]) -> None:
    report = parse_junit(ran[0])
    summary = report.summary
    assert (summary.passed, summary.failed, summary.errors, summary.skipped) == (1, 3, 3, 2)
    assert summary.duration_ms > 0
    assert report.collected == 9
    assert set(summary.failing) == set(FAILING)
    assert all(FAILING[test.id] in test.message for test in report.failing)
    method = next(test for test in report.failing if test.id.endswith("test_method"))
    assert "tests/test_a.py:" in method.traceback


def test_output_of_a_real_run(ran: tuple[bytes, str]) -> None:
    report = parse_pytest_output(ran[1])
    assert report is not None
    summary = report.summary
    # pytest's own line counts a test that fails and whose tear-down fails as two.
    assert (summary.passed, summary.failed, summary.errors, summary.skipped) == (1, 4, 3, 2)
    assert set(summary.failing) == set(FAILING)


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
    assert [(test.id, test.message) for test in report.failing] == [("a.py::t", "real")]


def test_other_runners_without_files() -> None:
    document = (
        b'<testsuites><testsuite name="go" time="1.5"><testcase classname="pkg" name="TestX" time="1">'
        b'<failure message="">x_test.go:3: wrong</failure></testcase>'
        b'<testcase name="bare"/><testsuite time="9"/></testsuite></testsuites>'
    )
    report = parse_junit(document)
    assert (report.summary.passed, report.summary.failed, report.summary.duration_ms) == (1, 1, 1500)
    assert [(test.id, test.message) for test in report.failing] == [("pkg::TestX", "x_test.go:3: wrong")]


BOMB = """<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>
<testsuite><testcase name="&b;"/></testsuite>"""
FILE_READER = """<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><testsuite><testcase name="&f;"/></testsuite>"""


@pytest.mark.parametrize(
    "document",
    [
        BOMB.encode(),
        ('<?xml version="1.0" encoding="utf-16"?>' + BOMB).encode("utf-16"),
        FILE_READER.encode(),
        b"<!DOCTYPE testsuite SYSTEM 'http://127.0.0.1/x.dtd'><testsuite/>",
    ],
    ids=["entities", "utf-16", "file", "external"],
)
def test_document_types_are_refused(document: bytes) -> None:
    with pytest.raises(ReportUnreadable, match="DOCTYPE"):
        parse_junit(document)


@pytest.mark.parametrize(
    "document",
    [b"", b"\0", b"<testsuite>", b"<html/>", b'<?xml version="1.0" encoding="nosuch"?><testsuite/>', b"<a>\xff</a>"],
)
def test_what_is_no_report_is_refused(document: bytes) -> None:
    with pytest.raises(ReportUnreadable):
        parse_junit(document)


def test_size_and_depth_are_bounded() -> None:
    with pytest.raises(ReportUnreadable, match="bytes"):
        parse_junit(b" " * (MAX_REPORT_BYTES + 1))
    deep = 200_000
    report = parse_junit(b"<testsuite>" + b"<a>" * deep + b"</a>" * deep + b"</testsuite>")
    assert report.collected == 0


def test_what_is_shown_of_a_test_is_bounded() -> None:
    long = "x" * 50_000
    cases = "".join(f'<testcase name="{long}{n}"><failure message="{long}">{long}</failure></testcase>' for n in (1, 2))
    report = parse_junit(f"<testsuite>{cases}</testsuite>".encode())
    assert report.summary.failed == 2
    assert len(set(report.summary.failing)) == 2
    for test in report.failing:
        assert len(test.id) <= MAX_ID_CHARS
        assert len(test.message) <= MAX_MESSAGE_CHARS
        assert len(test.traceback) <= MAX_TRACEBACK_CHARS


def test_numbers_that_are_none() -> None:
    for time in ("nan", "inf", "-1", "1e400", "abc"):
        assert parse_junit(f'<testsuite time="{time}"/>'.encode()).summary.duration_ms == 0


ENDS = {"passed": "", "skipped": "<skipped/>", "failed": "<failure>f</failure>", "errors": "<error>e</error>"}
# XML has no place for the two characters that are none; runners write them otherwise.
_names = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), min_size=1, max_size=20
)


@given(st.dictionaries(_names, st.sampled_from(sorted(ENDS)), max_size=30))
def test_counts_are_those_of_the_document(cases: dict[str, str]) -> None:
    body = "".join(f"<testcase name={quoteattr(name)}>{ENDS[end]}</testcase>" for name, end in cases.items())
    summary = parse_junit(f"<testsuite>{body}</testsuite>".encode()).summary
    for end in ENDS:
        assert getattr(summary, end) == list(cases.values()).count(end)
    assert set(summary.failing) == {name for name, end in cases.items() if end in ("failed", "errors")}


FRAGMENTS = """<testsuite>|</testsuite>|<testcase name='a'>|</testcase>|<failure>|</failure>|<error message='m'/>|text
<!DOCTYPE a>|&amp;|&a;|<![CDATA[y]]>|<?xml version='1.0'?>|<testcase name='b' file='/' classname='b'/>"""
_fragments = (
    st.lists(st.sampled_from(FRAGMENTS.replace("\n", "|").split("|")), max_size=20).map("".join).map(str.encode)
)


@given(st.one_of(st.binary(max_size=300), _fragments))
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    try:
        report = parse_junit(data)
    except ReportUnreadable:
        return
    assert report.summary.failed + report.summary.errors == len(report.failing)


@given(st.text(max_size=500))
def test_any_text_is_a_report_or_none(text: str) -> None:
    parse_pytest_output(text)
    parse_pytest_output(f"== short test summary info ==\nFAILED {text}\n1 failed in 0.1s")
