"""Evidence: what a clean clone with a candidate's patch applied says about the candidate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.test_summaries import test_summary
from swe_ai_fleet.domain.candidate import CheckAssignment, CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import PatchRejected
from swe_ai_fleet.domain.task import CheckSpec, Task
from swe_ai_fleet.orchestrator.diff_policy import diff_policy
from swe_ai_fleet.orchestrator.lint import Findings, NotLinted, find, lint_check
from swe_ai_fleet.ports import BlobStore, Clone, SecretMask, WorkspaceProvider
from swe_ai_fleet.tools.access import ToolAccess
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.secrets import Secrets
from swe_ai_fleet.tools.tests import TestTool
from swe_ai_fleet.tools.truncation import truncate

OUTPUT_CHARS = 8_000


@dataclass(frozen=True, kw_only=True)
class EvidenceGatherer:
    """Runs checks on this node.

    The order is cheap to dear: does the patch apply, is the diff within policy, lint (new findings only), then the
    task's own commands, or the repository's tests where it has none. A patch that does not apply ends it there.
    """

    workspaces: WorkspaceProvider
    blobs: BlobStore
    access: ToolAccess = field(default_factory=ToolAccess)
    mask: SecretMask = field(default_factory=Secrets)

    async def gather(self, assignment: CheckAssignment) -> CheckReport:
        """All evidence about one candidate. Raises what opening a clone raises."""
        environment = await self.workspaces.environment(assignment.repository, assignment.task.environment)
        environment = replace(environment, network=self.access.hosts(assignment.task.constraints))
        patch = await self.blobs.get(assignment.patch) if assignment.patch else None

        def clean_clone(name: str) -> AbstractAsyncContextManager[Clone]:
            name = f"{name}-{assignment.candidate_id}"
            return self.workspaces.open(assignment.execution_id, name, assignment.repository, environment)

        async with clean_clone("check") as clone:
            if patch is None:
                results = await self._dynamic(assignment.task, clone)
            else:
                results = await self._evidence(assignment.task, clone, patch, clean_clone)
        return CheckReport(
            candidate_id=assignment.candidate_id,
            results=tuple(replace(result, output=self._shown(result.output)) for result in results),
        )

    async def _evidence(
        self, task: Task, clone: Clone, patch: bytes, clean_clone: Callable[[str], AbstractAsyncContextManager[Clone]]
    ) -> list[CheckResult]:
        policy = diff_policy(patch, task.constraints)
        applied = await self._apply(clone, patch)
        if not applied.passed:
            return [applied, policy.result]
        after = await find(clone, policy.files)
        before: Findings | NotLinted = Findings(Counter())
        if isinstance(after, Findings) and after.counts:
            # Only where there are findings does it matter which of them were there before.
            async with clean_clone("base") as base:
                before = await find(base, policy.files)
        return [applied, policy.result, lint_check(before, after), *await self._dynamic(task, clone)]

    async def _apply(self, clone: Clone, patch: bytes) -> CheckResult:
        started_at = time.monotonic()
        if not patch.strip():
            return CheckResult(
                kind=CheckKind.APPLY, name="patch applies", passed=False, message="the candidate changes nothing"
            )
        try:
            await clone.apply(patch)
        except PatchRejected as error:
            return CheckResult(
                kind=CheckKind.APPLY,
                name="patch applies",
                passed=False,
                message=error.message,
                duration_ms=_elapsed(started_at),
            )
        return CheckResult(
            kind=CheckKind.APPLY, name="patch applies", passed=True, score=1.0, duration_ms=_elapsed(started_at)
        )

    async def _dynamic(self, task: Task, clone: Clone) -> list[CheckResult]:
        """The task's commands; without any, the repository's own tests."""
        checks = task.constraints.checks
        if not checks:
            return [await self._tests(task, clone)]
        return [await self._command(task, clone, check) for check in checks]

    async def _command(self, task: Task, clone: Clone, check: CheckSpec) -> CheckResult:
        result = await clone.run(
            Command(
                argv=("sh", "-c", check.command),
                cwd=task.repo.subdirectory or ".",
                timeout_seconds=check.timeout_seconds,
                merge_stderr=True,
            )
        )
        passed = not result.timed_out and result.exit_code == check.expected_exit_code
        message = "" if passed else f"exit code {result.exit_code}"
        if result.timed_out:
            message = f"not finished within {check.timeout_seconds:g} seconds"
        return CheckResult(
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

    async def _tests(self, task: Task, clone: Clone) -> CheckResult:
        if not clone.environment.test_command:
            reason = "no test command was found in the repository, and the task names no check"
            return CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=False, skipped_reason=reason)
        limits = ToolLimits(command_timeout_seconds=CheckSpec(name="", command="").timeout_seconds)
        result = await TestTool(clone, Pipeline(limits=limits)).run()
        summary = test_summary(result)
        total = summary.passed + summary.failed + summary.errors if summary else 0
        return CheckResult(
            kind=CheckKind.DRY_RUN,
            name="tests",
            passed=result.success,
            score=1.0 if result.success else 0.5 * (summary.passed / total if summary and total else 0.0),
            message="" if result.success else result.error,
            output=result.content,
            exit_code=result.exit_code,
            problems=summary.failing if summary else (),
            tests=summary,
            duration_ms=round(result.duration * 1000),
        )

    def _shown(self, output: str) -> str:
        return truncate(self.mask(output), OUTPUT_CHARS)


def _elapsed(started_at: float) -> int:
    return round((time.monotonic() - started_at) * 1000)
