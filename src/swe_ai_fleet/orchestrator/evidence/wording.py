"""What the tests of a candidate say, in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.orchestrator.evidence.comparison import Comparison

_NAMED = 20
_NAMED_SHORT = 3


def message_of(
    after: TestRun, before: TestRun, compared: Comparison, flaky: Collection[str], *, failed_check: bool
) -> str:
    sentences: list[str] = []
    if compared.broken:
        sentences.append(f"{_tests(compared.broken)} with the change and not without: {_short(compared.broken)}")
    if compared.own_failing:
        sentences.append(
            f"{_tests(compared.own_failing)} that the change itself brings: {_short(compared.own_failing)}"
        )
    if compared.named:
        sentences.append(f"{_tests(compared.named)} that the task is about: {_short(compared.named)}")
    if compared.otherwise:
        otherwise = _short(compared.otherwise)
        sentences.append(f"{_tests(compared.otherwise)} in another way than without the change: {otherwise}")
    if compared.vanished:
        sentences.append(f"no longer run: {_short(compared.vanished)}")
    if failed_check and not sentences:
        sentences.append(after.stopped or f"exit code {after.exit_code}")
    if not sentences:
        sentences.append(_shown_text(after, before, compared))
    if compared.old:
        sentences.append(f"{len(compared.old)} failed before and fail{'s' if len(compared.old) == 1 else ''} now")
    if compared.unable:
        sentences.append(f"{len(compared.unable)} of its own cannot run here: {_short(compared.unable)}")
    if flaky:
        sentences.append(f"{len(flaky)} flaky")
    return "; ".join(sentences)


def _shown_text(after: TestRun, before: TestRun, compared: Comparison) -> str:
    """What a run without a fault shows."""
    if compared.by_own_rules and not compared.shown:
        tests = "1 test passes" if len(compared.by_own_rules) == 1 else f"{len(compared.by_own_rules)} tests pass"
        named = _short(compared.by_own_rules)
        return f"{after.summary.passed} passed, but {tests} only as the change itself has tests run: {named}"
    own = f" ({text})" if (text := own_summary(compared)) else ""
    if compared.shown:
        single = len(compared.shown) == 1
        tests = "1 test fails" if single else f"{len(compared.shown)} tests fail"
        passes = f"pass{'es' if single else ''} with it: {_short(compared.shown)}"
        return f"{tests} without the change and {passes}{own}; {after.summary.passed} passed"
    nothing = "no test fails without the change" if not compared.own else "its tests pass without the change too"
    return f"{after.summary.passed} passed, {nothing}{own}"


def own_summary(compared: Comparison) -> str:
    if not compared.own:
        return ""
    count, shown = len(compared.own), len(compared.own_shown)
    fail = "fails" if shown == 1 else "fail"
    return f"{count} new or changed test{'' if count == 1 else 's'}, {shown} {fail} without the change"


def notes_of(after: TestRun, before: TestRun | None) -> list[str]:
    notes = [*after.notes]
    if after.stopped:
        notes.append(f"with the change: {after.stopped}")
    if before is not None and before.stopped:
        notes.append(f"untouched commit: {before.stopped}")
    for run, where in ((after, "with the change"), (before, "untouched commit")):
        if run is not None and (run.hung or run.crashed):
            notes += [f"{where}: {test} hangs" for test in run.hung[:_NAMED_SHORT]]
            notes += [f"{where}: {test} crashes the test run" for test in run.crashed[:_NAMED_SHORT]]
    return notes


def _tests(tests: Collection[str]) -> str:
    return f"{len(tests)} tests fail" if len(tests) > 1 else "1 test fails"


def _short(tests: Sequence[str]) -> str:
    shown = ", ".join(tests[:_NAMED_SHORT])
    return shown + (f" and {len(tests) - _NAMED_SHORT} more" if len(tests) > _NAMED_SHORT else "")


def listed(tests: Collection[str]) -> str:
    shown = list(tests)[:_NAMED]
    return "\n".join((*shown, *([f"and {len(tests) - _NAMED} more"] if len(tests) > _NAMED else [])))
