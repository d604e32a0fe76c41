"""One suite on one candidate: run with and without the change, compared, and repeated where one run is not enough."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.candidate import BY_OWN_RULES, CheckKind, CheckResult
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.test_run import NO_TESTS, TestRun, unusable
from swe_ai_fleet.orchestrator.evidence.check_results import Concern, allowed_concerns
from swe_ai_fleet.orchestrator.evidence.comparison import (
    WHOLE_RUN,
    Comparison,
    alike,
    compare,
    conclusive,
    counts,
    fails,
    listed,
    message_of,
    notes_of,
    own_summary,
    passes,
)
from swe_ai_fleet.orchestrator.evidence.relevance import TaskNames, Touched, readers
from swe_ai_fleet.orchestrator.evidence.source_files import CloneFiles, holds_tests
from swe_ai_fleet.orchestrator.evidence.test_runs import NoRun, Suite, SuiteBench, SuiteSubject, files_of, selected
from swe_ai_fleet.tools.tests.plan import Selection

RERUNS = 2
MAX_RERUN_TESTS = 20
"""More new failures than this are not flaky, and are not run again."""
WHOLE_RERUN_SECONDS = 60.0
"""A suite up to this duration is run again as a whole, so that a test which fails only among the others fails again.

Of a longer one only the files of the tests in question are run again.
"""
MAX_WHOLE_RERUN_SECONDS = 300.0
"""A suite longer than this whose tests cannot be selected is not run again at all."""
_MAX_PROBLEMS = 50

Variant = Callable[[], Awaitable[SuiteSubject | None]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A suite that judges one candidate.

    Attributes:
        task: Tests that it names have to pass, whatever their result before.
        base: The untouched commit; the candidate is the same with the patch.
        own_tests: Returns the untouched source with the candidate's test files; None where they cannot be separated.
        by_old_rules: Returns the candidate without its changes of how tests are run, itself where it has none; None
            where they cannot be separated.
    """

    bench: SuiteBench
    suite: Suite
    task: Task
    base: SuiteSubject
    candidate: SuiteSubject
    touched: Touched
    first: tuple[tuple[str, ...], ...]
    own_tests: Variant
    by_old_rules: Variant

    async def result(self, files: CloneFiles) -> CheckResult:
        """What the suite says of the candidate; skipped with the reason where it can say nothing.

        Args:
            files: Of a clone of the candidate in which nothing has run.
        """
        before = await self.bench.attempt(self.base, self.suite)
        selection = Selection(first=self.first) if self.first and not self.suite.strict else Selection()
        base_run = before if isinstance(before, TestRun) else None
        after = await self.bench.attempt(self.candidate, self.suite, selection, before=base_run)
        if isinstance(after, NoRun):
            return self._skipped(f"the tests could not be run: {after.reason}")
        if not isinstance(before, TestRun):
            return self._without_baseline(after, before.reason)
        if not (before.framework or before.reported or after.reported):
            return await self._by_exit_code(after, before)
        read = await self._readers(files, before, after)
        own = await self._own_run(files, before, read)
        touched = self.touched.read_by(read)
        compared = compare(after, before, own, touched, TaskNames(self.task), strict=self.suite.strict)
        reason = unusable(before)
        if reason and not compared.own_shown and not (reason == NO_TESTS and compared.own_failing):
            if not await self._revived(after, before, own):
                return self._without_baseline(after, reason, before)
            compared = Comparison(shown=(WHOLE_RUN,))
            return self._judged(after, before, compared, ())
        if Concern.TESTS in allowed_concerns(self.task.constraints):
            compared = replace(compared, vanished=())
        compared, flaky = await self._repeated(after, before, compared, files)
        return self._judged(after, before, compared, flaky)

    async def _without_own_rules(self, compared: Comparison, before: TestRun, files: CloneFiles) -> Comparison:
        """The comparison without tests that pass only under the change's own test configuration.

        Where a test that passed before fails under the untouched commit's configuration, no other test counts as shown.
        """
        candidate = await self.by_old_rules()
        if candidate is self.candidate:
            return compared
        run = await self.bench.attempt(candidate, self.suite, before=before) if candidate is not None else None
        if candidate is None or not isinstance(run, TestRun):
            return replace(compared.showing(()), by_own_rules=(WHOLE_RUN,))
        strictly = compare(run, before, None, self.touched, TaskNames(self.task), strict=self.suite.strict)
        broken = [*strictly.broken, *strictly.vanished]
        if broken:
            again = await self._again(candidate, broken, run, files)
            if again is not None and conclusive(again, run):
                broken = [test for test in broken if test in again.failing or test not in run.results]
        if broken:
            return replace(compared.showing(()), by_own_rules=tuple(broken))
        passing = [test for test in compared.shown if passes(run, test)]
        lacking = tuple(test for test in compared.shown if test not in passing)
        return replace(compared.showing(passing), by_own_rules=lacking)

    async def _revived(self, after: TestRun, before: TestRun, own: TestRun | None) -> bool:
        """Whether the run as a whole fails without the change and succeeds with it, each time."""
        if before.exit_code in (None, 0) or not after.summary.passed or not _ends_well(after, 0):
            return False
        if self.touched.files and (own is None or _ends_well(own, 0)):
            return False  # the new tests alone may make the run succeed
        candidate = await self.by_old_rules()
        if candidate is None:
            return False
        again = [
            await self.bench.attempt(subject, self.suite, before=before, repetition=1)
            for subject in (self.base, candidate)
        ]
        return [isinstance(run, TestRun) and _ends_well(run, 0) for run in again] == [False, True]

    async def _readers(self, files: CloneFiles, before: TestRun, after: TestRun) -> tuple[str, ...]:
        """The test files that read data files among the tests which the candidate changes."""
        tests = (*before.results, *after.results)
        data = [path for path in self.touched.files if not any(map(Touched([path]).has, tests))]
        if not data:
            return ()
        return await asyncio.to_thread(readers, data, await files.paths(), files.text)

    async def _own_run(self, files: CloneFiles, before: TestRun, read: Sequence[str]) -> TestRun | None:
        """A run of the candidate's test files on the untouched source, with those that read its changed data files."""
        subject = await self.own_tests() if self.touched.files else None
        if subject is None:
            return None
        paths = [*(path for path in self.touched.files if files.has(path) and holds_tests(path)), *read]
        own = await self.bench.attempt(subject, self.suite, selected(self.suite, paths, before), before=before)
        if isinstance(own, NoRun) and before.duration_ms <= MAX_WHOLE_RERUN_SECONDS * 1000:
            own = await self.bench.attempt(subject, self.suite, before=before)
        return own if isinstance(own, TestRun) else None

    async def _repeated(
        self, after: TestRun, before: TestRun, compared: Comparison, files: CloneFiles
    ) -> tuple[Comparison, tuple[str, ...]]:
        """The comparison without results that further runs do not confirm, and the tests that turned out flaky."""
        flaky: list[str] = []
        doubted = [test for test in (*compared.broken, *compared.own_failing) if test in after.results]
        if WHOLE_RUN in compared.broken or 0 < len(compared.broken) + len(compared.own_failing) <= MAX_RERUN_TESTS:
            still, whole_again = doubted, WHOLE_RUN in compared.broken
            for repetition in range(1, RERUNS + 1):
                again = await self._again(self.candidate, still, after, files, repetition=repetition, whole=whole_again)
                if again is None:
                    break
                if conclusive(again, after):
                    still = [test for test in still if test in again.failing]
                    whole_again = whole_again and again.exit_code not in (0, before.exit_code)
                if not still and not whole_again:
                    break
            flaky = [test for test in doubted if test not in still]
            still_failing = {*still, *([WHOLE_RUN] if whole_again else [])}
            compared = replace(
                compared,
                broken=tuple(test for test in compared.broken if test in still_failing),
                own_failing=tuple(test for test in compared.own_failing if test in still_failing),
            )
        if compared.otherwise:
            compared = await self._settled(compared, after, before, files)
        if not compared.against:
            compared = await self._without_own_rules(compared, before, files)
        if compared.shown and not compared.against:
            confirmed = await self._confirmed(compared, after, before, files)
            flaky += [test for test in compared.shown if test not in confirmed]
            compared = compared.showing(confirmed)
        return compared, tuple(dict.fromkeys(flaky))

    async def _settled(self, compared: Comparison, after: TestRun, before: TestRun, files: CloneFiles) -> Comparison:
        """The comparison where `otherwise` has only tests that fail differently each time, not by chance."""
        doubted = compared.otherwise
        with_it = without = None
        if len(doubted) <= MAX_RERUN_TESTS:
            with_it = await self._again(self.candidate, doubted, after, files)
            without = await self._again(self.base, doubted, before, files)

        def stays(test: str) -> bool:
            return all(
                again is not None and test in again.failing and alike(again.results[test].message, result.message)
                for again, result in ((with_it, after.results[test]), (without, before.results.get(test)))
                if result is not None
            )

        still = tuple(test for test in doubted if with_it is not None and without is not None and stays(test))
        old = tuple(test for test in doubted if test not in still)
        return replace(compared, otherwise=still, old=(*compared.old, *old))

    async def _confirmed(
        self, compared: Comparison, after: TestRun, before: TestRun, files: CloneFiles
    ) -> tuple[str, ...]:
        """Those of the shown tests that again fail without the change, and again pass with it."""
        candidate = await self.by_old_rules()
        shown_tests = compared.shown
        with_it = await self._again(candidate, shown_tests, after, files, alone=True) if candidate is not None else None
        passing = [test for test in shown_tests if with_it is not None and passes(with_it, test)]
        confirmed: set[str] = set()
        for own in (False, True):
            if tests := [test for test in passing if (test in compared.own_shown) is own]:
                subject = await self.own_tests() if own else self.base
                without = await self._again(subject, tests, before, files, alone=True) if subject is not None else None
                confirmed |= {test for test in tests if without is not None and fails(without, test)}
        return tuple(test for test in shown_tests if test in confirmed)

    async def _again(
        self,
        subject: SuiteSubject,
        tests: Sequence[str],
        last: TestRun,
        files: CloneFiles,
        *,
        repetition: int = 1,
        whole: bool = False,
        alone: bool = False,
    ) -> TestRun | None:
        """Another run of the suite, or of the files of some tests if it takes long; None where neither is possible."""
        short = last.duration_ms <= WHOLE_RERUN_SECONDS * 1000 and not alone
        paths = () if whole or short else files_of(tests, files)
        if not paths and last.duration_ms > MAX_WHOLE_RERUN_SECONDS * 1000:
            return None
        again = await self.bench.attempt(
            subject, self.suite, Selection(paths=paths), before=last, repetition=repetition
        )
        if paths and last.duration_ms <= MAX_WHOLE_RERUN_SECONDS * 1000 and not _has_result(again, tests):
            # This runner does not select tests by file.
            again = await self.bench.attempt(subject, self.suite, before=last, repetition=repetition)
        return again if isinstance(again, TestRun) else None

    def _judged(self, after: TestRun, before: TestRun, compared: Comparison, flaky: Collection[str]) -> CheckResult:
        against = list(compared.against)
        failed_check = self.suite.strict and after.exit_code != self.suite.expected_exit_code
        passed = not against and not failed_check
        details = {"baseline": counts(before), "command": after.command}
        for title, tests in (
            ("fail without the change", compared.shown),
            ("failing before", compared.old),
            ("flaky", flaky),
            ("new failures", compared.broken),
            ("own tests failing", compared.own_failing),
            ("still failing", compared.named),
            ("failing in another way", compared.otherwise),
            ("no longer run", compared.vanished),
            ("cannot run here", compared.unable),
            (BY_OWN_RULES, compared.by_own_rules),
        ):
            if tests:
                details[title] = listed(tests)
        if own := own_summary(compared):
            details["own tests"] = own
        if notes := notes_of(after, before):
            details["notes"] = "\n".join(notes)
        return self._result(
            after,
            passed=passed,
            message=message_of(after, compared, flaky, failed_check=failed_check),
            problems=tuple(against[:_MAX_PROBLEMS]),
            shown=compared.shown if passed else (),
            own=compared.own_shown,
            warnings=len(flaky),
            details=details,
        )

    async def _by_exit_code(self, after: TestRun, before: TestRun) -> CheckResult:
        """A command that reports no tests, compared by its exit code with and without the change."""
        expected = self.suite.expected_exit_code
        passed, passed_before = (_ends_well(run, expected) for run in (after, before))
        is_shown = False
        if passed and not passed_before:
            candidate = await self.by_old_rules()
            again = [
                await self.bench.attempt(subject, self.suite, before=before, repetition=1)
                for subject in (self.base, candidate)
                if subject is not None
            ]
            ends = [isinstance(run, TestRun) and _ends_well(run, expected) for run in again]
            is_shown = ends == [False, True]
        elif passed_before and not passed:
            again = await self.bench.attempt(self.candidate, self.suite, before=before, repetition=1)
            passed = isinstance(again, TestRun) and _ends_well(again, expected)
        ends = f"ends with {_end(after)}, without the change with {_end(before)}"
        if not self.suite.strict and not passed and not passed_before:
            return replace(self._skipped(f"`{after.command}` {ends}"), output=after.output)
        return self._result(
            after,
            passed=passed,
            message=f"`{after.command}` {ends}",
            shown=(f"`{after.command}`",) if is_shown else (),
            details={"baseline": _end(before), "command": after.command},
        )

    def _without_baseline(self, after: TestRun, reason: str, before: TestRun | None = None) -> CheckResult:
        """A run without a usable baseline; only a check of the caller's is judged by its exit code alone."""
        details = {"baseline": f"none: {reason}", "command": after.command}
        if notes := notes_of(after, before):
            details["notes"] = "\n".join(notes)
        if not self.suite.strict:
            outcome = f" ({counts(after)} with the change)" if after.reported else ""
            skipped = self._skipped(f"no baseline: {reason}{outcome}")
            return replace(skipped, output=after.output, details=details, duration_ms=after.duration_ms)
        passed = after.exit_code == self.suite.expected_exit_code and not after.stopped
        message = "" if passed else after.stopped or f"exit code {after.exit_code}"
        return self._result(after, passed=passed, message=message, details=details)

    def _result(
        self,
        after: TestRun,
        *,
        passed: bool,
        message: str,
        problems: tuple[str, ...] = (),
        shown: tuple[str, ...] = (),
        own: tuple[str, ...] = (),
        warnings: int = 0,
        details: Mapping[str, str],
    ) -> CheckResult:
        summary = after.summary
        share = summary.passed / after.ran if after.ran else float(passed)
        return CheckResult(
            kind=CheckKind.COMMAND if self.suite.strict else CheckKind.DRY_RUN,
            name=self.suite.name,
            passed=passed,
            required=self.suite.required,
            score=round(0.5 * share + 0.5 * passed, 4),
            message=message,
            output=after.output,
            exit_code=after.exit_code,
            problems=problems,
            warnings=warnings,
            tests=summary if after.reported else None,
            shown=shown[:_MAX_PROBLEMS],
            own=tuple(test for test in shown[:_MAX_PROBLEMS] if test in own),
            details=details,
            duration_ms=after.duration_ms,
        )

    def _skipped(self, reason: str) -> CheckResult:
        kind = CheckKind.COMMAND if self.suite.strict else CheckKind.DRY_RUN
        return CheckResult(kind=kind, name=self.suite.name, passed=False, skipped_reason=reason)


def _has_result(run: TestRun | NoRun, tests: Sequence[str]) -> bool:
    """Whether a run has a result of one of the tests, or of its file."""
    if not isinstance(run, TestRun):
        return False
    return run.unnamed.passed > 0 or any(
        test in run.results or test.partition("::")[0] in run.results for test in tests
    )


def _ends_well(run: TestRun, expected: int) -> bool:
    return not run.stopped and run.exit_code == expected


def _end(run: TestRun) -> str:
    return run.stopped or f"exit code {run.exit_code}"
