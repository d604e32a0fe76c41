"""Running tests, with a report that a model can act on and a program can compare."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import PurePosixPath
from typing import Annotated, ClassVar

from pydantic import Field

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.tool import Outcome, Risk, ToolResult
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.shell import command_result
from swe_ai_fleet.tools.test_reports import (
    MAX_REPORT_BYTES,
    FailingTest,
    ReportUnreadable,
    TestReport,
    parse_junit,
    parse_pytest_output,
)

MAX_TESTS_SHOWN = 20
"""Failing tests shown with their traceback; more are named only."""
MAX_TESTS_NAMED = 200
_TAIL_CHARS = 4_000
_PYTHON = ("python3", "-m", "pytest")
_USAGE_ERROR, _NOTHING_COLLECTED = 4, 5

Paths = Annotated[
    list[str], Field(description="Test files, directories or ids (tests/test_a.py::test_b); all if empty.")
]
Keyword = Annotated[str | None, Field(description="Only tests whose name matches this -k expression.")]


class TestTool(Toolkit):
    """The repository's tests."""

    __test__ = False
    name: ClassVar[str] = "tests"

    @operation(executes=True, risk=Risk.MEDIUM)
    async def run(
        self,
        paths: Paths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Keyword = None,
    ) -> ToolResult:
        """Run the repository's tests the way the repository runs them, all or some."""
        argv = self.workspace.environment.test_command
        if not argv:
            raise ToolFailure("no test command was found in this repository; use tests_pytest or shell_run_command")
        if is_pytest(argv):
            return await self._pytest("tests_run", argv, paths, keyword, None)
        if paths or keyword:
            raise ToolFailure(
                f"these tests are run by `{' '.join(argv)}`, which takes no paths or keyword from here: "
                "call it without them, or select with shell_run_command"
            )
        result = await self.workspace.run(self._command(argv))
        return _told("tests_run", result, parse_pytest_output(result.stdout.text()))

    @operation(executes=True, risk=Risk.MEDIUM)
    async def pytest(
        self,
        paths: Paths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Keyword = None,
        max_failures: Annotated[int | None, Field(description="Stop after so many failures.", ge=1)] = None,
    ) -> ToolResult:
        """Run pytest, all tests or some; failing tests come with their message and the end of their traceback."""
        argv = self.workspace.environment.test_command
        return await self._pytest("tests_pytest", argv if is_pytest(argv) else _PYTHON, paths, keyword, max_failures)

    async def _pytest(
        self, name: str, argv: tuple[str, ...], paths: list[str], keyword: str | None, max_failures: int | None
    ) -> ToolResult:
        # pytest resolves variables in these two settings itself; the sandbox's TMPDIR is private to the workspace.
        report_path = f"fleet-{secrets.token_hex(8)}.xml"
        options = [
            "-q",
            f"--junitxml=$TMPDIR/{report_path}",
            *("-o", "junit_family=xunit1"),  # the family that names each test's file, without which ids are guesses
            *("-o", "cache_dir=$TMPDIR/fleet-pytest-cache"),  # out of the repository: it would show up in the diff
        ]
        if max_failures is not None:
            options.append(f"--maxfail={max_failures}")
        if keyword is not None:
            options.append(f"-k={_plain(keyword)}")
        result = await self.workspace.run(self._command((*argv, *options, *map(_operand, paths))))
        if _pytest_missing(result):
            raise ToolFailure(
                "pytest is not installed in this workspace's environment; the task's environment must install it "
                "(a setup command, or a requirements file), or use another runner through shell_run_command"
            )
        report = await self._report(report_path) if result.exit_code != _USAGE_ERROR else None
        return _told(name, result, report or parse_pytest_output(result.stdout.text()), pytest=True)

    def _command(self, argv: tuple[str, ...]) -> Command:
        return Command(argv=argv, timeout_seconds=self.pipeline.limits.command_timeout_seconds, merge_stderr=True)

    async def _report(self, path: str) -> TestReport | None:
        """The XML that the run left, read through the sandbox; None where there is none to be trusted."""
        script = 'cd "$TMPDIR" && test -f "$1" && cat -- "$1" && rm -f -- "$1"'
        read = await self.workspace.run(
            Command(
                argv=("sh", "-c", script, "sh", path),
                light=True,
                output_limit=MAX_REPORT_BYTES // 2,
                timeout_seconds=30,
            )
        )
        if not read.ok or read.stdout.elided:
            return None
        try:
            return await asyncio.to_thread(parse_junit, read.stdout.head + read.stdout.tail)
        except ReportUnreadable:
            return None


def is_pytest(argv: tuple[str, ...]) -> bool:
    """Whether a test command is pytest's: by its own name, as a module, or behind `uv run` and its like."""
    names = [PurePosixPath(word).name in ("pytest", "py.test") for word in argv]
    return any(named and (i == 0 or argv[i - 1] in ("-m", "run")) for i, named in enumerate(names))


def _operand(path: str) -> str:
    """A path as pytest takes it for one: it reads options behind `--` too, and files of options behind `@`."""
    _plain(path)
    return f"./{path}" if path.startswith(("-", "@")) else path


def _plain(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ToolFailure(f"{text[:80]!r} selects nothing; leave it out to run all tests")
    return text


def _pytest_missing(result: CommandResult) -> bool:
    said = result.stdout.text() if result.stdout.total < _TAIL_CHARS else ""
    return result.exit_code == 127 or (result.exit_code == 1 and said.rstrip().endswith("No module named pytest"))


def _told(name: str, result: CommandResult, report: TestReport | None, *, pytest: bool = False) -> ToolResult:
    """What a reader of a test run needs: counts, each failing test, and the output's end where that says too little."""
    ended = command_result(name, result)
    passed = ended.success and (report is None or not report.failing)
    if report is not None and not report.collected:
        report = None  # its zeros say less than the output, and would read like a result
    output = ended.content.strip()
    parts: list[str] = []
    if report is not None:
        parts.append(_counts(report))
        parts.extend(_described(test) for test in report.failing[:MAX_TESTS_SHOWN])
        if report.failing[MAX_TESTS_SHOWN:]:
            named = [test.id for test in report.failing[MAX_TESTS_SHOWN:MAX_TESTS_NAMED]]
            parts.append("Also failing:\n" + "\n".join(named))
    if report is None or (not passed and not report.failing):
        parts.append(output if report is None and not pytest else _tail(output))
    return ToolResult(
        success=passed,
        operation=name,
        content="\n\n".join(part for part in parts if part),
        error="" if passed else _error(ended, report, pytest=pytest),
        exit_code=result.exit_code,
        metadata={"tests": _as_json(report)} if report is not None else {},
        outcome=Outcome.SUCCESS if passed else Outcome.ERROR if ended.success else ended.outcome,
        truncated=ended.truncated,
    )


def _error(ended: ToolResult, report: TestReport | None, *, pytest: bool) -> str:
    if ended.outcome is Outcome.TIMEOUT:
        return f"the tests were {ended.error}"
    if pytest and ended.exit_code == _NOTHING_COLLECTED:
        return "no tests were collected: check paths and keyword, or leave them out to run all tests"
    if pytest and ended.exit_code == _USAGE_ERROR:
        return "pytest could not start with these arguments; it says why below"
    if report is not None and report.failing:
        return f"{len(report.failing)} of {report.collected} tests did not pass"
    return f"the test run failed: {ended.error}"


def _counts(report: TestReport) -> str:
    summary = report.summary
    counts = [
        f"{number} {word}"
        for number, word in (
            (summary.failed, "failed"),
            (summary.errors, "errors"),
            (summary.passed, "passed"),
            (summary.skipped, "skipped"),
        )
        if number
    ]
    return f"{', '.join(counts) or 'no tests ran'} in {summary.duration_ms / 1000:.2f} s"


def _described(test: FailingTest) -> str:
    body = test.traceback if test.message.splitlines()[:1] and test.message.splitlines()[0] in test.traceback else ""
    said = body or "\n".join(part for part in (test.message, test.traceback) if part)
    return f"FAILED {test.id}\n" + "\n".join(f"    {line}" for line in said.splitlines())


def _tail(output: str) -> str:
    if len(output) <= _TAIL_CHARS:
        return output
    cut = output.find("\n", len(output) - _TAIL_CHARS)
    return "[...]\n" + output[cut + 1 if cut >= 0 else len(output) - _TAIL_CHARS :]


def _as_json(report: TestReport) -> dict[str, object]:
    summary = report.summary
    return {
        "passed": summary.passed,
        "failed": summary.failed,
        "errors": summary.errors,
        "skipped": summary.skipped,
        "duration_ms": summary.duration_ms,
        "failing": [{"id": test.id, "message": test.message} for test in report.failing[:MAX_TESTS_NAMED]],
    }
