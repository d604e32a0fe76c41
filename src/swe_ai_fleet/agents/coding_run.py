"""One assignment carried out: a clone, a prompt, the loop, and what it leaves as a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from swe_ai_fleet.agents.agent_run import AgentRun
from swe_ai_fleet.agents.opening import INSTRUCTION_FILES, opening_messages
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.candidate import Artifacts, Assignment, BlobRef, Candidate, Diff, TestSummary
from swe_ai_fleet.domain.event import RunClaimed, RunFinished, RunStarted, Writer
from swe_ai_fleet.domain.message import Sampling
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import Trajectory
from swe_ai_fleet.ports import BlobStore, ChatModel, Clone, EventLog, Journal, SecretMask
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.catalogue import coding_toolkits
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.secrets import Secrets

PATCH_MEDIA_TYPE = "text/x-diff"


@dataclass(frozen=True, kw_only=True)
class CodingRun:
    """What every run of a process shares: the model, the log, the blob store, the secrets.

    `host` names the process in the log; `audit_key` keys the digests of full arguments.
    """

    model: ChatModel
    log: EventLog
    blobs: BlobStore
    mask: SecretMask = field(default_factory=Secrets)
    audit_key: bytes = b""
    host: str = ""

    async def carry_out(self, assignment: Assignment, clone: Clone) -> Candidate:
        """Run the agent in the clone and hand in what it leaves. Raises Fenced, Unavailable; a cancellation passes."""
        task = assignment.task
        writer = Writer(
            tenant=task.tenant,
            execution_id=assignment.execution_id,
            task_id=task.task_id,
            agent_id=assignment.agent_id,
            generation=assignment.generation,
        )
        async with self.log.journal(writer) as journal:
            journal.post(RunClaimed(generation=assignment.generation, host=self.host))
            trail = AuditTrail(
                execution_id=assignment.execution_id,
                agent_id=assignment.agent_id,
                journal=journal,
                key=self.audit_key,
            )
            return await self._solve(assignment, clone, journal, trail)

    async def _solve(self, assignment: Assignment, clone: Clone, journal: Journal, trail: AuditTrail) -> Candidate:
        task, perspective = assignment.task, assignment.perspective
        constraints = task.constraints
        limits = ToolLimits(command_timeout_seconds=constraints.limits.command_timeout_seconds)
        pipeline = Pipeline(
            trail=trail,
            policy=Policy(
                role=task.role,
                read_only=not task.enable_tools,
                allowed=frozenset(task.tools) | frozenset(constraints.allowed_tools),
                denied=frozenset(constraints.denied_tools),
                allowed_paths=constraints.allowed_paths,
            ),
            mask=self.mask,
            store=lambda data: self.blobs.put(task.tenant, assignment.execution_id, data, "text/plain"),
            limits=limits,
        )
        toolbox = Toolbox(coding_toolkits(clone, pipeline), pipeline)
        opening = opening_messages(
            task,
            workspace=clone,
            limits=limits,
            perspective=perspective,
            instruction_files=[name for name in INSTRUCTION_FILES if (clone.root / name).is_file()],
        )
        model_name = (await self.model.probe()).model
        journal.post(
            RunStarted(
                role=task.role,
                model=model_name,
                messages=opening,
                tools=tuple(spec.name for spec in toolbox.specs),
                temperature=perspective.temperature,
                seed=perspective.seed,
                environment=clone.environment.key,
            )
        )
        run = AgentRun(
            model=self.model,
            toolbox=toolbox,
            journal=journal,
            limits=constraints.limits,
            sampling=Sampling(temperature=perspective.temperature, seed=perspective.seed),
            abort_on_error=constraints.abort_on_error,
        )
        trajectory = await run.drive(opening)
        diff = await clone.diff()
        patch = await self.blobs.put(task.tenant, assignment.execution_id, diff.patch, PATCH_MEDIA_TYPE)
        commit, branch = await clone.head()
        artifacts = gather_artifacts(trajectory, diff, patch=patch, commit=commit, branch=branch)
        finished = await journal.append(
            RunFinished(
                stop_reason=trajectory.stop_reason,
                artifacts=artifacts,
                usage=trajectory.usage,
                audit_head=trail.head,
                answer=self.mask(trajectory.answer),
                error=trajectory.error,
            )
        )
        return Candidate(
            candidate_id=assignment.agent_id,
            agent_id=assignment.agent_id,
            role=task.role,
            summary=self.mask(trajectory.answer),
            stop_reason=trajectory.stop_reason,
            artifacts=artifacts,
            usage=trajectory.usage,
            audit_head=trail.head,
            submitted_at=finished.at,
            model=model_name,
            error=trajectory.error,
        )


def gather_artifacts(
    trajectory: Trajectory, diff: Diff, *, patch: BlobRef | None, commit: str, branch: str
) -> Artifacts:
    """What a run left, from its diff and its last test run."""
    return Artifacts(
        commit_sha=commit,
        branch=branch,
        patch=patch,
        files_changed=diff.files,
        insertions=diff.insertions,
        deletions=diff.deletions,
        tests=last_tests(trajectory),
    )


def last_tests(trajectory: Trajectory) -> TestSummary | None:
    """The summary of the run's last test operation, None if there was none."""
    for step in reversed(trajectory.steps):
        for seen in reversed(step.observations):
            summary = _test_summary(seen.result)
            if summary is not None:
                return summary
    return None


def _test_summary(result: ToolResult) -> TestSummary | None:
    tests = result.metadata.get("tests")
    if not isinstance(tests, dict):
        return None
    counts = cast("Mapping[str, object]", tests)
    failing = cast("list[Mapping[str, object]]", counts.get("failing", []))
    return TestSummary(
        passed=_count(counts, "passed"),
        failed=_count(counts, "failed"),
        errors=_count(counts, "errors"),
        skipped=_count(counts, "skipped"),
        duration_ms=_count(counts, "duration_ms"),
        failing=tuple(str(failure.get("id", "")) for failure in failing),
    )


def _count(counts: Mapping[str, object], name: str) -> int:
    value = counts.get(name, 0)
    return value if isinstance(value, int) else 0
