"""Evidence: the checks of a candidate, from cheap to expensive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from swe_ai_fleet.agents.scoring import RubricJudge
from swe_ai_fleet.domain.assignment import BaselineAssignment, CheckAssignment, ExamineAssignment
from swe_ai_fleet.domain.candidate import ChangedTest, CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.environment import EnvironmentReport
from swe_ai_fleet.domain.errors import FleetError, PatchRejected
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.domain.test_run import Baseline, SuiteBaseline, suite_baseline
from swe_ai_fleet.orchestrator.evidence.check_results import Concern, Violation, storable, verdict_of
from swe_ai_fleet.orchestrator.evidence.comparison import WHOLE_RUN as WHOLE_RUN
from swe_ai_fleet.orchestrator.evidence.comparison import Comparison as Comparison
from swe_ai_fleet.orchestrator.evidence.comparison import compare as compare
from swe_ai_fleet.orchestrator.evidence.examining import Examining
from swe_ai_fleet.orchestrator.evidence.patch import Patch, PatchUnreadable, parse_patch
from swe_ai_fleet.orchestrator.evidence.policy import oversized, patch_violations, policy_results, tree_violations
from swe_ai_fleet.orchestrator.evidence.relevance import TaskNames, Touched, first_tests
from swe_ai_fleet.orchestrator.evidence.rubric import rubric_check
from swe_ai_fleet.orchestrator.evidence.settings_changes import changed_rules
from swe_ai_fleet.orchestrator.evidence.source_files import CloneFiles, inline_tests, is_test, language_of
from swe_ai_fleet.orchestrator.evidence.static_checks import LintCheck, compile_faults
from swe_ai_fleet.orchestrator.evidence.test_runs import NoRun, Suite, SuiteBench, SuiteSubject, TestRuns, suites_of
from swe_ai_fleet.orchestrator.evidence.trial import Trial
from swe_ai_fleet.orchestrator.evidence.weakened_tests import changed_tests
from swe_ai_fleet.ports import BlobStore, EvidenceWorkspaces, SecretMask
from swe_ai_fleet.tools.catalogue import ToolAccess
from swe_ai_fleet.tools.secrets import Secrets


@dataclass(frozen=True, kw_only=True)
class EvidenceGatherer:
    """Runs checks on this node.

    The order is from cheap to expensive: whether the patch applies, policy, lint (new findings), then the task's own
    commands, or the repository's tests where it has none (compared with the same tests before the patch), then a
    model's opinion on the task's rubric. If the patch does not apply, nothing else runs.

    Attributes:
        mask: Hides secrets, and knows those that a patch must not contain.
        runs: Earlier test runs, of this or another process.
        rubric: Judges the task's rubric; None: the rubric is not checked.
    """

    workspaces: EvidenceWorkspaces
    blobs: BlobStore
    access: ToolAccess = field(default_factory=ToolAccess)
    mask: SecretMask = field(default_factory=Secrets)
    runs: TestRuns = field(default_factory=TestRuns)
    rubric: RubricJudge | None = None

    async def gather(self, assignment: CheckAssignment) -> CheckReport:
        """All evidence about one candidate, with the verdict. Raises what opening a clone raises."""
        patch = await self.blobs.get(assignment.patch) if assignment.patch else None
        gathering = _Gathering(self, assignment)
        results, tree = await gathering.results(patch)
        verdict, reasons = verdict_of(results)
        return CheckReport(
            candidate_id=assignment.candidate_id,
            results=tuple(results),
            verdict=verdict,
            reasons=reasons,
            tree=tree,
            changed_tests=tuple(map(self._masked_test, gathering.changed_tests)),
        )

    async def baseline(self, assignment: BaselineAssignment) -> Baseline:
        """The results of tests and checks on the untouched commit. Raises what building its environment raises."""
        started_at = time.monotonic()
        task, base = assignment.task, await self.subject("baseline", assignment.repository, assignment.task)
        bench = SuiteBench(execution_id=assignment.execution_id, workspaces=self.workspaces, runs=self.runs)
        suites = [await self._suite(bench, base, suite) for suite in suites_of(task, base.environment)]
        return Baseline(
            commit=assignment.repository.commit,
            environment=base.environment.key,
            recipe_key=base.environment.recipe_key,
            report=self._masked_report(base.environment.report),
            suites=tuple(map(self._masked_suite, suites)),
            duration_ms=_elapsed(started_at),
        )

    async def examine(self, assignment: ExamineAssignment) -> Examination:
        """The tests of candidates on the sources of the others. Raises what building the environment raises."""
        base = await self.subject("baseline", assignment.repository, assignment.task)
        return await Examining(
            assignment=assignment,
            workspaces=self.workspaces,
            blobs=self.blobs,
            bench=SuiteBench(execution_id=assignment.execution_id, workspaces=self.workspaces, runs=self.runs),
            base=base,
            suites=suites_of(assignment.task, base.environment),
            mask=self.mask,
        ).run()

    async def subject(self, name: str, repository: PinnedRepository, task: Task) -> SuiteSubject:
        """A commit with its environment, and the network of the task's tools. Raises what building it raises."""
        environment = await self.workspaces.environment(repository, task.environment)
        environment = replace(environment, network=self.access.hosts(task.constraints))
        return SuiteSubject(name=name, repository=repository, environment=environment)

    async def _suite(self, bench: SuiteBench, base: SuiteSubject, suite: Suite) -> SuiteBaseline:
        command = suite.line or " ".join(suite.argv)
        run = await bench.attempt(base, suite)
        return SuiteBaseline(command=command, unusable=run.reason) if isinstance(run, NoRun) else suite_baseline(run)

    def _masked_report(self, report: EnvironmentReport) -> EnvironmentReport:
        """The report with secrets masked, and without its steps, which are in the build's own log."""
        return replace(
            report,
            steps=(),
            left_out=tuple(map(self.mask, report.left_out)),
            decisions=tuple(replace(decision, what=self.mask(decision.what)) for decision in report.decisions),
        )

    def _masked_test(self, test: ChangedTest) -> ChangedTest:
        return ChangedTest(**{name: self.mask(text) for name, text in asdict(test).items()})

    def _masked_suite(self, suite: SuiteBaseline) -> SuiteBaseline:
        return replace(
            suite,
            command=self.mask(suite.command),
            uncollected=tuple(map(self.mask, suite.uncollected)),
            unusable=self.mask(suite.unusable),
            output=self.mask(suite.output),
        )


class _Gathering:
    """Gathers the evidence about one candidate."""

    def __init__(self, gatherer: EvidenceGatherer, assignment: CheckAssignment) -> None:
        self._gatherer = gatherer
        self._assignment = assignment
        self._task = assignment.task
        self._bench = SuiteBench(
            execution_id=assignment.execution_id,
            workspaces=gatherer.workspaces,
            runs=gatherer.runs,
            owner=assignment.candidate_id,
        )
        self._own_tests: SuiteSubject | None = None
        self.changed_tests: tuple[ChangedTest, ...] = ()

    async def results(self, data: bytes | None) -> tuple[list[CheckResult], str]:
        """The results, and the git tree that was checked."""
        if data is None:
            return await self._of_commit()
        started_at = time.monotonic()
        patch, violations = await asyncio.to_thread(self._policy, data)
        judged = _elapsed(started_at)
        applied, patched = await self._applied(data)
        if patched is None:
            return [applied, *await self._stored(*policy_results(violations, self._task, duration_ms=judged))], ""
        base = await self._gatherer.subject("baseline", self._assignment.repository, self._task)
        candidate = await self._gatherer.subject("candidate", patched, self._task)
        async with self._bench.clone("check", candidate) as clone:
            files = CloneFiles(clone)
            started_at = time.monotonic()
            new_source = any(file.is_new and language_of(file.path) for file in patch.files)
            listed = await files.paths() if new_source else frozenset[str]()
            violations += await asyncio.to_thread(lambda: list(tree_violations(patch, listed, files.text)))
            self.changed_tests = await asyncio.to_thread(changed_tests, patch, files.text)
            policy = policy_results(violations, self._task, duration_ms=judged + _elapsed(started_at))
            started_at = time.monotonic()
            lint = LintCheck(
                patch=patch,
                files=files,
                base_commit=base.repository.commit,
                clean_clone=partial(self._bench.clone, subject=base),
            )
            linted = replace(await lint.result(), duration_ms=_elapsed(started_at))
            results = [applied, *await self._stored(*policy, linted)]
            results += await self._dynamic(patch, files, base, candidate)
            if self._gatherer.rubric is not None:
                rubric = await rubric_check(self._gatherer.rubric, self._assignment, patch, files, results)
                results += await self._stored(rubric) if rubric is not None else []
        return results, candidate.environment.tree

    async def _of_commit(self) -> tuple[list[CheckResult], str]:
        """The results for a commit without a patch, such as an integration branch, compared with its base commit."""
        before = self._assignment.baseline or self._assignment.repository
        candidate = await self._gatherer.subject("check", self._assignment.repository, self._task)
        base = await self._gatherer.subject("baseline", before, self._task)
        async with self._bench.clone("check", candidate) as clone:
            results = await self._dynamic(Patch(), CloneFiles(clone), base, candidate)
        return results, candidate.environment.tree

    def _policy(self, data: bytes) -> tuple[Patch, list[Violation]]:
        if violation := oversized(data):
            return Patch(), [violation]
        try:
            patch = parse_patch(data)
        except PatchUnreadable as error:
            return Patch(), [Violation(concern=Concern.FORM, text=f"the patch can't be read: {error.message}")]
        return patch, list(patch_violations(patch, self._task, self._gatherer.mask))

    async def _applied(self, patch: bytes) -> tuple[CheckResult, PinnedRepository | None]:
        """Whether the patch can be applied, and the commit with it."""
        started_at = time.monotonic()
        patched: PinnedRepository | None = None
        message = "" if patch.strip() else "the candidate has no changes"
        if not message:
            assignment = self._assignment
            try:
                patched = await self._gatherer.workspaces.patched(assignment.execution_id, assignment.repository, patch)
            except PatchRejected as error:
                message = self._gatherer.mask(error.message)
        result = CheckResult(
            kind=CheckKind.APPLY,
            name="patch applies",
            passed=not message,
            score=float(not message),
            message=message,
            duration_ms=_elapsed(started_at),
        )
        return result, patched

    async def _dynamic(
        self, patch: Patch, files: CloneFiles, base: SuiteSubject, candidate: SuiteSubject
    ) -> list[CheckResult]:
        """The task's commands; without any, the repository's own build and tests."""
        # The untouched commit decides how tests are run; the candidate does only where that commit has no tests.
        suites = suites_of(self._task, base.environment) or suites_of(self._task, candidate.environment)
        if not self._task.constraints.checks:
            started_at = time.monotonic()
            base_clone = partial(self._bench.clone, subject=base)
            faults = await compile_faults(patch, files, base_clone, base_commit=base.repository.commit)
            if faults:
                return await self._stored(_not_built(faults, _elapsed(started_at)))
        if not suites:
            reason = "no test command was found in the repository, and the task names no check"
            return [CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=False, skipped_reason=reason)]
        names = TaskNames(self._task)
        listed = await files.paths()
        first = await asyncio.to_thread(first_tests, patch, names, listed, files.text)

        async def own_tests() -> SuiteSubject | None:
            if self._own_tests is None:
                self._own_tests = await self._with_own_tests(patch, base, inline)
            return self._own_tests

        settings = await changed_rules(patch, files, suites, base.environment)
        inline = await asyncio.to_thread(_inline_tests, patch, files.text)

        async def by_old_rules() -> SuiteSubject | None:
            if not settings:
                return candidate
            return await self._patched("old-rules", base, patch.without(settings))

        results: list[CheckResult] = []
        for suite in suites:
            trial = Trial(
                bench=self._bench,
                suite=suite,
                task=self._task,
                base=base,
                candidate=candidate,
                touched=Touched(patch.paths, inline),
                first=first,
                own_tests=own_tests,
                by_old_rules=by_old_rules,
            )
            results += await self._stored(await trial.result(files))
        return results

    async def _with_own_tests(
        self, patch: Patch, base: SuiteSubject, inline: Mapping[str, bytes]
    ) -> SuiteSubject | None:
        """The untouched source with the candidate's test files; None where it changes none, or nothing else."""
        source = [file.path for file in patch.files if not is_test(file.path)]
        data = patch.without(source) + b"".join(inline.values())
        subject = await self._patched("own-tests", base, data) if source else None
        if subject is None:
            return None
        # The untouched commit's environment: additions to the environment are a part of the change.
        return replace(subject, environment=replace(base.environment, tree=subject.environment.tree))

    async def _patched(self, name: str, base: SuiteSubject, data: bytes) -> SuiteSubject | None:
        """The untouched commit with a part of the patch, in its own environment; None: the part is empty or fails."""
        if not data.strip():
            return None
        try:
            patched = await self._gatherer.workspaces.patched(self._assignment.execution_id, base.repository, data)
            return await self._gatherer.subject(name, patched, self._task)
        except FleetError:
            return None  # a part of a patch need not apply

    async def _stored(self, *results: CheckResult) -> list[CheckResult]:
        """The results with secrets masked and sizes bounded, their whole output in the object store."""
        put = self._gatherer.blobs.put
        store = partial(put, self._task.tenant, self._assignment.execution_id, media_type="text/plain")
        return [await storable(result, mask=self._gatherer.mask, store=store) for result in results]


def _inline_tests(patch: Patch, text: Callable[[str], str]) -> dict[str, bytes]:
    """The part of the patch that changes tests inside source files, by path."""
    sources: dict[str, bytes] = {}
    for file in patch.files:
        if not is_test(file.path) and not file.is_new and (line := inline_tests(file.path, text(file.path))):
            sources[file.path] = file.from_line(line)
    return {path: data for path, data in sources.items() if data}


def _not_built(faults: Sequence[str], duration_ms: int) -> CheckResult:
    return CheckResult(
        kind=CheckKind.DRY_RUN,
        name="build",
        passed=False,
        message=f"does not compile: {faults[0]}",
        problems=tuple(faults),
        output="\n".join(faults),
        duration_ms=duration_ms,
    )


def _elapsed(started_at: float) -> int:
    return round((time.monotonic() - started_at) * 1000)
