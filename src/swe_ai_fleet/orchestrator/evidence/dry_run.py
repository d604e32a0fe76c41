"""The repository's own tests on a candidate, held against the same tests before it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.orchestrator.evidence.clone_files import CloneFiles
from swe_ai_fleet.orchestrator.evidence.suite_run import SuiteRun, run_suite
from swe_ai_fleet.orchestrator.evidence.violation import Concern, allowed_concerns
from swe_ai_fleet.ports import Clone

RERUNS = 2
MAX_RERUN_TESTS = 20
"""More new failures than this are no accident, and are not run again."""
WHOLE_RERUN_SECONDS = 60.0
"""A suite that takes no longer is run again as a whole: a test that only fails among the others fails again."""
MAX_WHOLE_RERUN_SECONDS = 300.0
"""A longer one is, where its tests cannot be chosen from, not run again at all."""
_NAMED = 20
_MAX_PROBLEMS = 50
_ALIKE_SHARE = 0.6
_WORDS = re.compile(r"\w+")
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The failing tests of a candidate.

    `broken` did not fail before; `open` did, but the task is about them; `old` failed the same way before, and do not
    count, as do `flaky` ones, which pass when run again. `fixed` failed before only.
    """

    broken: tuple[str, ...]
    open: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    @property
    def counting(self) -> tuple[str, ...]:
        return (*self.broken, *self.open)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Runs the tests on one candidate.

    Args:
        task: The task; tests that it names have to pass, however they ended before.
        seconds: The limit of one run of the tests.
        baseline: The run on the commit before, or why there is none.
        patched: Opens another clean clone with the candidate's patch applied.
        whole_seconds: A suite that took longer is run again in part, by the files of the tests in question.
    """

    task: Task
    seconds: float
    baseline: Callable[[], Awaitable[SuiteRun | str]]
    patched: Callable[[str], AbstractAsyncContextManager[Clone]]
    whole_seconds: float = WHOLE_RERUN_SECONDS

    async def result(self, files: CloneFiles) -> tuple[CheckResult, str]:
        """The check, and everything that the commands printed."""
        run = await run_suite(files.clone, seconds=self.seconds)
        before = await self.baseline()
        unusable = before if isinstance(before, str) else _unusable(before)
        if unusable or isinstance(before, str):
            compared = Comparison(broken=tuple(run.failing))
            return _told(run, compared, None, "", details={"baseline": f"none: {unusable}"}), run.whole
        compared = compare(run, before, self.task)
        compared = await self._rerun(run, compared, files)
        fewer = "" if Concern.TESTS in allowed_concerns(self.task.constraints) else _fewer(run, before)
        return _told(run, compared, before, fewer, details={"baseline": _counts(before)}), run.whole

    async def _rerun(self, run: SuiteRun, compared: Comparison, files: CloneFiles) -> Comparison:
        """The comparison without those new failures that do not stand up to a second and third run."""
        named = [test for test in compared.broken if test in run.failing]
        if run.timed_out or not named or len(compared.broken) > MAX_RERUN_TESTS:
            return compared
        still = named
        for number in range(1, RERUNS + 1):
            paths = _files_of(still, files) if run.duration_ms > self.whole_seconds * 1000 else []
            if not paths and run.duration_ms > MAX_WHOLE_RERUN_SECONDS * 1000:
                break
            async with self.patched(f"rerun{number}") as clone:
                again = await run_suite(clone, seconds=self.seconds, paths=paths)
            if _conclusive(again, run):
                still = [test for test in still if test in again.failing]
            if not still:
                break
        flaky = tuple(test for test in named if test not in still)
        return replace(compared, broken=tuple(test for test in compared.broken if test not in flaky), flaky=flaky)


def compare(run: SuiteRun, before: SuiteRun, task: Task) -> Comparison:
    """How the failures of a run stand to those before it.

    A test that failed before counts where the task names it, or where it fails otherwise now: then it is one that the
    candidate works on, and has not put right.
    """
    words = _Words(task)
    broken = [test for test in run.failing if test not in before.failing]
    known = [test for test in run.failing if test in before.failing]
    old = [test for test in known if _alike(run.failing[test], before.failing[test]) and not words.name(test)]
    if (unnamed := run.failed - len(run.failing)) > max(0, before.failed - len(before.failing)):
        broken.append(f"{unnamed} more tests")
    # What did not run has not been put right.
    told = _all_named(run) and not run.timed_out and run.ran >= before.ran
    fixed = [test for test in before.failing if test not in run.failing] if told else []
    return Comparison(
        broken=tuple(broken),
        open=tuple(test for test in known if test not in old),
        old=tuple(old),
        fixed=tuple(fixed),
    )


class _Words:
    """What a task speaks of."""

    def __init__(self, task: Task) -> None:
        text = "\n".join((task.description, task.context, task.constraints.rubric, *task.constraints.requirements))
        self._words = frozenset(word.strip(".,:;!?()[]`'\"") for word in re.split(r"[\s`'\"(),;]+", text))

    def name(self, test: str) -> bool:
        """Whether a test's id, its file or its own name is among the words."""
        path, mark, inside = test.partition("::")
        own = (inside.rpartition("::")[2] if mark else test.rpartition(".")[2]).partition("[")[0]
        files = _python_files(test) if not mark else [path]
        telling = [word for file in files for word in (file, PurePosixPath(file).name) if "." in word]
        if "_" in own or own.lower().startswith("test"):  # other names are words that any text may hold
            telling.append(own)
        return any(word in self._words for word in (test, *telling))


def _conclusive(again: SuiteRun, run: SuiteRun) -> bool:
    """Whether a test that is not among the failures of a second run has passed it."""
    if again.summary is None or not again.ran or again.timed_out or not _all_named(again):
        return False
    # Some runners name a test otherwise when only a part is run: a failure that nobody knows may be any of them.
    return all(test in run.failing for test in again.failing)


def _python_files(test: str) -> list[str]:
    """The files that a dotted name may lead to, the longest first; the name itself, should it be one."""
    parts = test.split(".")[:20]
    return [test, *("/".join(parts[:end]) + ".py" for end in range(len(parts) - 1, 0, -1))]


def _alike(one: str, other: str) -> bool:
    """Whether two messages say the same: the same kind of fault, and most words in common.

    Numbers do not matter; names of temporary files and the order in sets may differ between any two runs.
    """
    first, second = (_WORDS.findall(_CHANGING.sub("0", message)) for message in (one, other))
    if first[:1] != second[:1]:
        return False
    together = len({*first, *second})
    return not together or len({*first} & {*second}) >= _ALIKE_SHARE * together


def _unusable(before: SuiteRun) -> str:
    if before.timed_out:
        return "the tests did not end in time on the commit before"
    if before.summary is None:
        return f"on the commit before, {before.error or 'no report of the tests was found'}"
    return ""


def _fewer(run: SuiteRun, before: SuiteRun) -> str:
    if run.ran >= before.ran or (run.summary is None and not run.success):
        return ""
    return f"{run.ran or 'no'} tests ran, {before.ran} before"


def _all_named(run: SuiteRun) -> bool:
    return run.failed <= len(run.failing)


def _files_of(tests: Iterable[str], files: CloneFiles) -> list[str]:
    """The files of tests, to run whole: what upsets a test is often its neighbour. None where ids name no files."""
    found: dict[str, None] = {}
    for test in tests:
        path, mark, _ = test.partition("::")
        there = (name for name in ([path] if mark else _python_files(test)) if name and files.has(name))
        if (file := next(there, "")) == "" or file.startswith("-"):
            return []
        found[file] = None
    return list(found)


def _told(
    run: SuiteRun, compared: Comparison, before: SuiteRun | None, fewer: str, *, details: Mapping[str, str]
) -> CheckResult:
    problems = [*compared.counting, *([fewer] if fewer else [])]
    summary = run.summary
    passed = _passed(run, compared, before, fewer)
    share = _passing(run, compared) / run.ran if run.ran else float(run.success)
    told = dict(details)
    for title, tests in (
        ("failing before", compared.old),
        ("flaky", compared.flaky),
        ("fixed", compared.fixed),
        ("new failures", compared.broken if before is not None else ()),
        ("still failing", compared.open),
    ):
        if tests:
            told[title] = _listed(tests)
    return CheckResult(
        kind=CheckKind.DRY_RUN,
        name="tests",
        passed=passed,
        score=round(0.5 * share + 0.5 * passed, 4),
        message=_message(run, compared, before, fewer, passed=passed),
        output=run.output,
        exit_code=run.exit_code,
        problems=tuple(problems[:_MAX_PROBLEMS]),
        warnings=len(compared.flaky),
        tests=summary,
        details=told,
        duration_ms=run.duration_ms,
    )


def _passing(run: SuiteRun, compared: Comparison) -> int:
    return (run.summary.passed if run.summary else 0) + len(compared.flaky)


def _passed(run: SuiteRun, compared: Comparison, before: SuiteRun | None, fewer: str) -> bool:
    if run.timed_out or compared.counting or fewer:
        return False
    if run.success:
        return True
    if not _passing(run, compared):
        return False
    if compared.old or compared.flaky:
        return True
    # It ends badly though no test fails (a limit of coverage, a hook): no matter only where it did so before.
    return before is not None and not before.success and not before.failing and before.exit_code == run.exit_code


def _message(run: SuiteRun, compared: Comparison, before: SuiteRun | None, fewer: str, *, passed: bool) -> str:
    said: list[str] = []
    if not passed:
        if before is None or run.timed_out or not (compared.counting or fewer):
            said.append(run.error or "the test run failed")
        else:
            said += [f"{_tests(compared.broken)} that did not before"] if compared.broken else []
            said += [f"{_tests(compared.open)} that the task is about"] if compared.open else []
        said += [fewer] if fewer else []
        if not _passing(run, compared) and compared.old:
            said.append("no test passes, so nothing is shown")
    if compared.old:
        said.append(f"{_tests(compared.old)} as before")
    if compared.flaky:
        said.append(f"{len(compared.flaky)} flaky")
    return "; ".join(said)


def _tests(tests: Collection[str]) -> str:
    return f"{len(tests)} tests fail" if len(tests) > 1 else "1 test fails"


def _listed(tests: Collection[str]) -> str:
    shown = list(tests)[:_NAMED]
    return "\n".join((*shown, *([f"and {len(tests) - _NAMED} more"] if len(tests) > _NAMED else [])))


def _counts(run: SuiteRun) -> str:
    return f"{run.summary.passed if run.summary else 0} passed, {run.failed} failed"
