"""Evidence: what a clean clone with a candidate's patch applied says about the candidate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.rubric import RubricJudge
from swe_ai_fleet.domain.candidate import CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errand import CheckAssignment
from swe_ai_fleet.domain.errors import FleetError, PatchRejected
from swe_ai_fleet.domain.task import CheckSpec, PinnedRepository
from swe_ai_fleet.orchestrator.evidence.baselines import Baselines, baseline_key
from swe_ai_fleet.orchestrator.evidence.clone_files import CloneFiles
from swe_ai_fleet.orchestrator.evidence.compilation import compile_faults
from swe_ai_fleet.orchestrator.evidence.dry_run import WHOLE_RERUN_SECONDS, DryRun
from swe_ai_fleet.orchestrator.evidence.lint import LintCheck
from swe_ai_fleet.orchestrator.evidence.outputs import kept
from swe_ai_fleet.orchestrator.evidence.patch import Patch, PatchUnreadable, parse_patch
from swe_ai_fleet.orchestrator.evidence.policy import (
    PolicyRules,
    oversized,
    patch_violations,
    policy_results,
    tree_violations,
)
from swe_ai_fleet.orchestrator.evidence.rubric import rubric_check
from swe_ai_fleet.orchestrator.evidence.source_files import language_of
from swe_ai_fleet.orchestrator.evidence.suite_run import SuiteRun, run_suite
from swe_ai_fleet.orchestrator.evidence.violation import Concern, Violation
from swe_ai_fleet.ports import BlobStore, Clone, SecretMask, WorkspaceProvider
from swe_ai_fleet.tools.access import ToolAccess
from swe_ai_fleet.tools.secrets import Secrets

TEST_SECONDS = CheckSpec(name="", command="").timeout_seconds
_TEXT = "text/plain"


@dataclass(frozen=True, kw_only=True)
class EvidenceGatherer:
    """Runs checks on this node.

    The order is cheap to dear: does the patch apply, is it within policy, lint (new findings only), then the task's
    own commands, or the repository's tests where it has none (held against the same tests before the patch), then what
    a model says to the task's rubric. A patch that does not apply ends it there.

    Attributes:
        workspaces: Opens clones.
        blobs: Has patches, keeps outputs.
        access: What commands may reach.
        mask: Hides secrets, and knows which a patch must not hold.
        rules: How large patches may be.
        whole_rerun_seconds: Test suites that take no longer are run again as a whole where new failures may be flaky.
        baselines: The test runs on commits that candidates start from.
        rubric: Judges the task's rubric; None: it is not looked at.
    """

    workspaces: WorkspaceProvider
    blobs: BlobStore
    access: ToolAccess = field(default_factory=ToolAccess)
    mask: SecretMask = field(default_factory=Secrets)
    rules: PolicyRules = field(default_factory=PolicyRules)
    whole_rerun_seconds: float = WHOLE_RERUN_SECONDS
    baselines: Baselines = field(default_factory=Baselines)
    rubric: RubricJudge | None = None

    async def gather(self, assignment: CheckAssignment) -> CheckReport:
        """All evidence about one candidate. Raises what opening a clone raises."""
        environment = await self.workspaces.environment(assignment.repository, assignment.task.environment)
        environment = replace(environment, network=self.access.hosts(assignment.task.constraints))
        patch = await self.blobs.get(assignment.patch) if assignment.patch else None
        gathering = _Gathering(self, assignment, environment, patch)
        return CheckReport(candidate_id=assignment.candidate_id, results=tuple(await gathering.results()))


class _Gathering:
    """The evidence about one candidate under way."""

    def __init__(
        self, own: EvidenceGatherer, assignment: CheckAssignment, environment: Environment, patch: bytes | None
    ) -> None:
        self._own = own
        self._assignment = assignment
        self._task = assignment.task
        self._environment = environment
        self._patch = patch
        self._baseline: asyncio.Task[SuiteRun | str] | None = None

    async def results(self) -> list[CheckResult]:
        try:
            async with self._clean("check") as clone:
                if self._patch is not None:
                    return await self._evidence(self._patch, clone)
                self._start_baseline()
                return await self._dynamic(Patch(), CloneFiles(clone))
        finally:
            if self._baseline is not None:
                self._baseline.cancel()
                await asyncio.gather(self._baseline, return_exceptions=True)

    async def _evidence(self, data: bytes, clone: Clone) -> list[CheckResult]:
        started_at = time.monotonic()
        patch, violations = await asyncio.to_thread(self._policy, data)
        judged = _elapsed(started_at)
        applied = await self._apply(clone, data)
        if not applied.passed:
            return [applied, *await self._kept_all(policy_results(violations, self._task, duration_ms=judged))]
        self._start_baseline()
        files = CloneFiles(clone)
        started_at = time.monotonic()
        new_source = any(file.is_new and language_of(file.path) for file in patch.files)
        listed = await files.paths() if new_source else frozenset[str]()
        violations += await asyncio.to_thread(lambda: list(tree_violations(patch, listed, files.text)))
        policy = policy_results(violations, self._task, duration_ms=judged + _elapsed(started_at))
        started_at = time.monotonic()
        lint = await LintCheck(patch=patch, files=files, clean_clone=self._clean).outcome()
        linted = replace(lint.result, duration_ms=_elapsed(started_at))
        results = [applied, *await self._kept_all((*policy, linted))]
        results += await self._dynamic(patch, files, parsed=lint.parsed)
        if self._own.rubric is not None:
            rubric = await rubric_check(self._own.rubric, self._assignment, patch, files, results)
            results += [await self._kept(rubric)] if rubric is not None else []
        return results

    def _policy(self, data: bytes) -> tuple[Patch, list[Violation]]:
        if violation := oversized(data, self._own.rules):
            return Patch(), [violation]
        try:
            patch = parse_patch(data)
        except PatchUnreadable as error:
            return Patch(), [Violation(concern=Concern.FORM, text=f"the patch can't be read: {error.message}")]
        return patch, list(patch_violations(patch, self._task, self._own.rules, self._own.mask))

    async def _apply(self, clone: Clone, patch: bytes) -> CheckResult:
        started_at = time.monotonic()
        message = "" if patch.strip() else "the candidate changes nothing"
        if not message:
            try:
                await clone.apply(patch)
            except PatchRejected as error:
                message = self._own.mask(error.message)
        return CheckResult(
            kind=CheckKind.APPLY,
            name="patch applies",
            passed=not message,
            score=float(not message),
            message=message,
            duration_ms=_elapsed(started_at),
        )

    async def _dynamic(self, patch: Patch, files: CloneFiles, *, parsed: bool = False) -> list[CheckResult]:
        """The task's commands; without any, the repository's own build and tests."""
        checks = self._task.constraints.checks
        if checks:
            return [await self._command(files.clone, check) for check in checks]
        started_at = time.monotonic()
        if faults := await compile_faults(patch, files, self._clean, parsed=parsed):
            return [await self._kept(_not_built(faults, _elapsed(started_at)))]
        if not self._environment.test_command:
            reason = "no test command was found in the repository, and the task names no check"
            return [CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=False, skipped_reason=reason)]
        dry_run = DryRun(
            task=self._task,
            seconds=TEST_SECONDS,
            baseline=self._before,
            patched=self._patched,
            whole_seconds=self._own.whole_rerun_seconds,
        )
        result, whole = await dry_run.result(files)
        return [await self._kept(result, whole)]

    def _start_baseline(self) -> None:
        """While the rest is looked at, the commit before may be tested."""
        assignment = self._assignment
        before = assignment.baseline or (assignment.repository if assignment.patch else None)
        if before is not None and not self._task.constraints.checks and self._environment.test_command:
            self._baseline = asyncio.create_task(self._tested(before))

    async def _before(self) -> SuiteRun | str:
        if self._baseline is None:
            return "no commit before it is known"
        return await self._baseline

    async def _tested(self, before: PinnedRepository) -> SuiteRun | str:
        """The tests on a commit, once for all candidates; otherwise why there is no such run."""
        environment = self._environment
        try:
            if before != self._assignment.repository:
                environment = await self._own.workspaces.environment(before, self._task.environment)
                environment = replace(environment, network=self._environment.network)

            async def run() -> SuiteRun:
                async with self._clean("baseline", before, environment) as clone:
                    return await run_suite(clone, seconds=TEST_SECONDS)

            key = baseline_key(before, environment)
            return await self._own.baselines.of(self._assignment.execution_id, key, run)
        except (FleetError, OSError) as error:
            return f"the commit before could not be tested: {error}"

    async def _command(self, clone: Clone, check: CheckSpec) -> CheckResult:
        result = await clone.run(
            Command(
                argv=("sh", "-c", check.command),
                cwd=self._task.repo.subdirectory or ".",
                timeout_seconds=check.timeout_seconds,
                merge_stderr=True,
            )
        )
        passed = not result.timed_out and result.exit_code == check.expected_exit_code
        message = "" if passed else f"exit code {result.exit_code}"
        if result.timed_out:
            message = f"not finished within {check.timeout_seconds:g} seconds"
        return await self._kept(
            CheckResult(
                kind=CheckKind.COMMAND,
                name=check.name or check.command,
                passed=passed,
                required=check.required,
                score=float(passed),
                message=message,
                output=result.stdout.text(),
                exit_code=result.exit_code,
                duration_ms=result.duration_ms,
            )
        )

    def _clean(
        self, name: str, repository: PinnedRepository | None = None, environment: Environment | None = None
    ) -> AbstractAsyncContextManager[Clone]:
        assignment = self._assignment
        # Short enough for an id, whatever the candidate is called.
        name = f"{name}-{assignment.candidate_id}"[:128].rstrip(".-")
        return self._own.workspaces.open(
            assignment.execution_id, name, repository or assignment.repository, environment or self._environment
        )

    @asynccontextmanager
    async def _patched(self, name: str) -> AsyncGenerator[Clone]:
        async with self._clean(name) as clone:
            await clone.apply(self._patch or b"")
            yield clone

    async def _kept(self, result: CheckResult, whole: str = "") -> CheckResult:
        assignment = self._assignment
        return await kept(
            result,
            whole,
            mask=self._own.mask,
            store=lambda data: self._own.blobs.put(self._task.tenant, assignment.execution_id, data, _TEXT),
        )

    async def _kept_all(self, results: Sequence[CheckResult]) -> list[CheckResult]:
        return [await self._kept(result) for result in results]


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
