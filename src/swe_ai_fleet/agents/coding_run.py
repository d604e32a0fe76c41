"""One coding task solved in one clone: the prompt, the tools, the loop, and what it leaves as a candidate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from swe_ai_fleet.agents.agent_run import AgentRun, Rules
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopGuard
from swe_ai_fleet.agents.opening import opening_messages
from swe_ai_fleet.agents.repository_facts import MAP_TOKENS, FactsCache
from swe_ai_fleet.agents.results import agent_result
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Assignment, BlobRef, Candidate, Diff, Perspective, TestSummary
from swe_ai_fleet.domain.event import RunClaimed, RunFinished, RunStarted, Writer
from swe_ai_fleet.domain.message import Message, Sampling
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory
from swe_ai_fleet.ports import BlobStore, ChatModel, Clone, EventLog, Journal, ResultBus, SecretMask
from swe_ai_fleet.tools.access import ToolAccess
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.catalogue import open_toolkits
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.secrets import Secrets

PATCH_MEDIA_TYPE = "text/x-diff"
_LAST_WORDS_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What a run did and what its clone holds at the end."""

    trajectory: Trajectory
    diff: Diff
    commit: str
    branch: str
    model: str

    def artifacts(self, patch: BlobRef | None) -> Artifacts:
        """What the run left, its patch by reference."""
        return Artifacts(
            commit_sha=self.commit,
            branch=self.branch,
            patch=patch,
            files_changed=self.diff.files,
            insertions=self.diff.insertions,
            deletions=self.diff.deletions,
            tests=last_tests(self.trajectory),
        )


async def solve(
    task: Task,
    clone: Clone,
    *,
    model: ChatModel,
    trail: AuditTrail,
    journal: Journal | None = None,
    mask: SecretMask | None = None,
    store: Callable[[bytes], Awaitable[BlobRef]] | None = None,
    perspective: Perspective | None = None,
    access: ToolAccess | None = None,
    facts: FactsCache | None = None,
) -> Solution:
    """Run one agent in a clone until it stops. Model faults and spent limits are stop reasons."""
    constraints, perspective = task.constraints, perspective or Perspective()
    limits = ToolLimits(command_timeout_seconds=constraints.limits.command_timeout_seconds)
    policy = Policy(
        role=task.role,
        read_only=not task.enable_tools,
        allowed=frozenset(task.tools) | frozenset(constraints.allowed_tools),
        denied=frozenset(constraints.denied_tools),
        allowed_paths=constraints.allowed_paths,
    )
    pipeline = Pipeline(trail=trail, policy=policy, mask=mask, store=store, limits=limits)
    async with open_toolkits(clone, pipeline, access or ToolAccess(), task) as held:
        toolbox = Toolbox(held.toolkits, pipeline, idle=held.idle)
        gathered = await (facts or FactsCache()).of(
            (task.tenant, task.execution_id), clone, focus=task.description, map_tokens=MAP_TOKENS
        )
        opening = opening_messages(
            task,
            workspace=clone,
            limits=limits,
            perspective=perspective,
            notes=held.notes,
            facts=gathered,
        )
        return await _solve(task, clone, model, toolbox, opening, journal, perspective)


async def _solve(
    task: Task,
    clone: Clone,
    model: ChatModel,
    toolbox: Toolbox,
    opening: tuple[Message, ...],
    journal: Journal | None,
    perspective: Perspective,
) -> Solution:
    capabilities = await model.probe()
    if journal is not None:
        started = RunStarted(
            role=task.role,
            model=capabilities.model,
            messages=opening,
            tools=tuple(spec.name for spec in toolbox.specs),
            temperature=perspective.temperature,
            seed=perspective.seed,
            environment=clone.environment.key,
        )
        journal.post(started)
    run = AgentRun(
        model=model,
        toolbox=toolbox,
        history=History(opening),
        budget=Budget(task.constraints.limits),
        rules=Rules(abort_on_error=task.constraints.abort_on_error),
        journal=journal,
        guard=LoopGuard(),
        sampling=Sampling(temperature=perspective.temperature, seed=perspective.seed),
    )
    trajectory = await run.drive()
    diff = await clone.diff()
    commit, branch = await clone.head()
    return Solution(trajectory=trajectory, diff=diff, commit=commit, branch=branch, model=capabilities.model)


@dataclass(frozen=True, kw_only=True)
class CodingRun:
    """Carries out assignments; what every run of a process shares.

    `host` names the process in the log; `audit_key` keys the digests of full arguments.
    """

    model: ChatModel
    log: EventLog
    blobs: BlobStore
    results: ResultBus
    mask: SecretMask = field(default_factory=Secrets)
    access: ToolAccess = field(default_factory=ToolAccess)
    facts: FactsCache = field(default_factory=FactsCache)
    audit_key: bytes = b""
    host: str = ""

    async def carry_out(self, assignment: Assignment, clone: Clone) -> Candidate:
        """Run the agent in the clone, record each step, publish and hand in what it leaves.

        Raises ModelError before the first step, Fenced, Unavailable; a cancellation passes after it was recorded.
        """
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
            try:
                return await self._hand_in(assignment, clone, journal, trail)
            except asyncio.CancelledError:
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await journal.append(_cancelled(trail))
                raise

    async def _hand_in(self, assignment: Assignment, clone: Clone, journal: Journal, trail: AuditTrail) -> Candidate:
        task = assignment.task
        solution = await solve(
            task,
            clone,
            model=self.model,
            trail=trail,
            journal=journal,
            mask=self.mask,
            store=lambda data: self.blobs.put(task.tenant, assignment.execution_id, data, "text/plain"),
            perspective=assignment.perspective,
            access=self.access,
            facts=self.facts,
        )
        trajectory = solution.trajectory
        patch = await self.blobs.put(task.tenant, assignment.execution_id, solution.diff.patch, PATCH_MEDIA_TYPE)
        finished = RunFinished(
            stop_reason=trajectory.stop_reason,
            artifacts=solution.artifacts(patch),
            usage=trajectory.usage,
            audit_head=trail.head,
            answer=self.mask(trajectory.answer),
            error=trajectory.error,
        )
        event = await journal.append(finished)
        candidate = Candidate(
            candidate_id=assignment.agent_id,
            agent_id=assignment.agent_id,
            role=task.role,
            summary=finished.answer,
            stop_reason=finished.stop_reason,
            artifacts=finished.artifacts,
            usage=finished.usage,
            audit_head=finished.audit_head,
            submitted_at=event.at,
            model=solution.model,
            error=finished.error,
        )
        await self.results.publish(
            tenant=task.tenant,
            task_id=task.task_id,
            execution_id=assignment.execution_id,
            agent_id=assignment.agent_id,
            payload=agent_result(candidate, task, trail.entries, solution.diff.patch),
        )
        return candidate


def last_tests(trajectory: Trajectory) -> TestSummary | None:
    """The summary of the run's last test operation, None if there was none."""
    for step in reversed(trajectory.steps):
        for seen in reversed(step.observations):
            summary = test_summary(seen.result)
            if summary is not None:
                return summary
    return None


def test_summary(result: ToolResult) -> TestSummary | None:
    """The test run a tool result speaks of, None if it speaks of none."""
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


def _cancelled(trail: AuditTrail) -> RunFinished:
    return RunFinished(
        stop_reason=StopReason.CANCELLED,
        artifacts=Artifacts(),
        usage=Usage(),
        audit_head=trail.head,
        error="the run was cancelled",
    )
