"""A test run as a reader of it needs it: counts, each failing test, and the output's end where that says too little."""

from __future__ import annotations

from collections.abc import Collection

from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.domain.tool import Outcome, ToolResult

MAX_TESTS_SHOWN = 20
"""Failing tests shown with their traceback; more are named only."""
MAX_TESTS_NAMED = 200
TAIL_CHARS = 4_000
_PYTEST_USAGE_ERROR = 4
_PYTEST_NOTHING_COLLECTED = 5
_EXPECTED = "expected to fail"
"""How the message of a skipped test begins that ran, and failed as it is marked to (`inside/fleet_pytest.py`)."""
_NOTHING_RUN = "check paths and keyword, or leave them out to run all tests"


def test_result(
    name: str, run: TestRun, *, announced: bool = False, failed_before: Collection[str] | None = None
) -> ToolResult:
    """The result of the operation `name`.

    Args:
        run: What was run.
        announced: Whether the command is to be said first, as it must where it was found out just now.
        failed_before: Tests that fail on the untouched commit; they come last, and by number only.

    A run without a single test is no success: nothing was shown.
    """
    known = failed_before or ()
    old = [test for test in run.failing if test in known]
    new = [test for test in run.failing if test not in known]
    # A command that reports no tests says by its exit code alone how it went.
    passed = run.green or (not run.framework and not run.reported and not run.stopped and run.exit_code == 0)
    output = run.output.strip()
    parts = [f"Ran `{run.command}`."] if announced else []
    parts += [f"Note: {note}." for note in run.notes]
    if run.reported:
        parts.append(_counts(run))
        parts.extend(described(test, run.results[test]) for test in new[:MAX_TESTS_SHOWN])
        if new[MAX_TESTS_SHOWN:]:
            parts.append("Also failing:\n" + "\n".join(new[MAX_TESTS_SHOWN:MAX_TESTS_NAMED]))
        parts.extend(_compared(run, known, old))
    if run.stopped:
        parts.append(f"Not all tests were run: {run.stopped}.")
    if not run.reported or run.stopped or (not passed and not run.failing):
        parts.append(output if not run.reported and run.framework != "pytest" else _tail(output))
    return ToolResult(
        success=passed,
        operation=name,
        content="\n\n".join(part for part in parts if part),
        error="" if passed else _error(run, new, old),
        exit_code=run.exit_code,
        metadata={
            "framework": run.framework,
            "command": run.command,
            **({"tests": _as_json(run)} if run.reported else {}),
        },
        outcome=Outcome.SUCCESS if passed else Outcome.TIMEOUT if _timed_out(run) else Outcome.ERROR,
        truncated="left out ...]" in run.output,
    )


def described(name: str, result: TestResult) -> str:
    """A failing test with its message and the end of its traceback, which may hold the message already."""
    first = result.message.splitlines()[:1]
    body = result.traceback if first and first[0] in result.traceback else ""
    body_text = body or "\n".join(part for part in (result.message, result.traceback) if part)
    return f"FAILED {name}\n" + "\n".join(f"    {line}" for line in body_text.splitlines())


def _compared(run: TestRun, known: Collection[str], old: list[str]) -> list[str]:
    fixed = [test for test in run.passing if test in known]
    parts: list[str] = []
    if fixed:
        parts.append(_listed(f"{_tests(fixed)} failed on the untouched commit and pass now", fixed))
    if old:
        parts.append(f"{_tests(old)} failed on the untouched commit already.")
    return parts


def _listed(title: str, names: list[str]) -> str:
    return f"{title}:\n" + "\n".join(names[:MAX_TESTS_SHOWN])


def _tests(names: list[str]) -> str:
    return f"{len(names)} test{'' if len(names) == 1 else 's'}"


def _timed_out(run: TestRun) -> bool:
    return bool(run.stopped) and run.exit_code is None


def _error(run: TestRun, new: list[str], old: list[str]) -> str:
    if _timed_out(run):
        return f"the tests were stopped: {run.stopped}"
    if run.framework == "pytest" and run.exit_code == _PYTEST_USAGE_ERROR and not run.reported:
        return "pytest could not start with these arguments; it says why below"
    if run.framework == "pytest" and run.exit_code == _PYTEST_NOTHING_COLLECTED and not run.ran:
        return f"no tests were collected: {_NOTHING_RUN}"
    if run.reported and not run.ran:
        return f"no test was run: {_NOTHING_RUN}"
    if new:
        return f"{len(new)} of {run.ran + run.summary.skipped} tests did not pass"
    if old:
        return f"the {_tests(old)} that fail failed on the untouched commit already"
    if run.failing or run.unnamed.failed or run.unnamed.errors:
        return f"{run.summary.failed + run.summary.errors} of {run.ran} tests did not pass"
    if not run.reported:
        why = f" ({run.stopped})" if run.stopped else f": exit code {run.exit_code}"
        return f"no test was run{why}; {_NOTHING_RUN}" if run.exit_code in (0, 5) else f"the test run failed{why}"
    return f"the test run failed: {run.stopped or f'exit code {run.exit_code}'}"


def _counts(run: TestRun) -> str:
    summary = run.summary
    expected = sum(run.results[test].message.startswith(_EXPECTED) for test in run.of(TestOutcome.SKIPPED))
    counts = [
        f"{number} {word}"
        for number, word in (
            (summary.failed, "failed"),
            (summary.errors, "error" if summary.errors == 1 else "errors"),
            (summary.passed, "passed"),
            (summary.skipped - expected, "skipped"),
            (expected, "failed as expected"),
        )
        if number
    ]
    return f"{', '.join(counts) or 'no tests ran'} in {summary.duration_ms / 1000:.2f} s"


def _tail(output: str) -> str:
    if len(output) <= TAIL_CHARS:
        return output
    cut = output.find("\n", len(output) - TAIL_CHARS)
    return "[...]\n" + output[cut + 1 if cut >= 0 else len(output) - TAIL_CHARS :]


def _as_json(run: TestRun) -> dict[str, object]:
    summary = run.summary
    return {
        "passed": summary.passed,
        "failed": summary.failed,
        "errors": summary.errors,
        "skipped": summary.skipped,
        "duration_ms": summary.duration_ms,
        "failing": [{"id": test, "message": run.results[test].message} for test in run.failing[:MAX_TESTS_NAMED]],
    }
