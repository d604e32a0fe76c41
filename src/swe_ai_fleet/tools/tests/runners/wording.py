"""A test run as a reader of it needs it: counts, each failing test, and the output's end where that says too little."""

from __future__ import annotations

from swe_ai_fleet.domain.command import CommandResult
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.tools.shell import command_result
from swe_ai_fleet.tools.tests.reports import FailingTest, TestReport

MAX_TESTS_SHOWN = 20
"""Failing tests shown with their traceback; more are named only."""
MAX_TESTS_NAMED = 200
TAIL_CHARS = 4_000
_PYTEST_USAGE_ERROR, _PYTEST_NOTHING_COLLECTED = 4, 5


def told(
    name: str,
    result: CommandResult,
    report: TestReport | None,
    *,
    framework: str,
    command: str,
    announced: bool = False,
) -> ToolResult:
    """The result of the operation `name`.

    Args:
        framework: What ran the tests, `pytest` and so on; empty for a command that is none of the known ones.
        command: What was run, as a person would type it.
        announced: Whether the command is to be said first, as it must where it was found out just now.

    A report without a single test is no success: nothing was shown.
    """
    ended = command_result(name, result)
    pytest = framework == "pytest"
    nothing = report is not None and not report.collected
    passed = ended.success and (report is None or not report.failing) and not nothing
    if nothing:
        report = None  # its zeros say less than the output, and would read like a result
    output = ended.content.strip()
    parts: list[str] = [f"Ran `{command}`."] if announced else []
    if report is not None:
        parts.append(_counts(report))
        parts.extend(_described(test) for test in report.failing[:MAX_TESTS_SHOWN])
        if report.failing[MAX_TESTS_SHOWN:]:
            named = [test.id for test in report.failing[MAX_TESTS_SHOWN:MAX_TESTS_NAMED]]
            parts.append("Also failing:\n" + "\n".join(named))
    if report is None or (not passed and not report.failing) or ended.outcome is Outcome.TIMEOUT:
        parts.append(output if report is None and not pytest else _tail(output))
    return ToolResult(
        success=passed,
        operation=name,
        content="\n\n".join(part for part in parts if part),
        error="" if passed else _error(ended, report, pytest=pytest, nothing=nothing),
        exit_code=result.exit_code,
        metadata={
            "framework": framework,
            "command": command,
            **({"tests": _as_json(report)} if report is not None else {}),
        },
        outcome=Outcome.SUCCESS if passed else Outcome.ERROR if ended.success else ended.outcome,
        truncated=ended.truncated,
    )


def _error(ended: ToolResult, report: TestReport | None, *, pytest: bool, nothing: bool) -> str:
    if ended.outcome is Outcome.TIMEOUT:
        return f"the tests were {ended.error}"
    if pytest and ended.exit_code == _PYTEST_NOTHING_COLLECTED:
        return "no tests were collected: check paths and keyword, or leave them out to run all tests"
    if pytest and ended.exit_code == _PYTEST_USAGE_ERROR:
        return "pytest could not start with these arguments; it says why below"
    if nothing:
        why = "" if ended.success else f" ({ended.error})"
        return f"no tests were run{why}: check paths and keyword, or leave them out to run all tests"
    if report is not None and report.failing:
        summary = report.summary
        return f"{summary.failed + summary.errors} of {report.collected} tests did not pass"
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
    if len(output) <= TAIL_CHARS:
        return output
    cut = output.find("\n", len(output) - TAIL_CHARS)
    return "[...]\n" + output[cut + 1 if cut >= 0 else len(output) - TAIL_CHARS :]


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
