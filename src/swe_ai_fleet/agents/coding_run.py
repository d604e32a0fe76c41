"""Carries out assignments: one agent run, each step recorded, what it leaves handed in as a candidate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swe_ai_fleet.agents.keeping_model import Keeping
from swe_ai_fleet.agents.opening import SecondGo
from swe_ai_fleet.agents.recorded_run import RunServices
from swe_ai_fleet.agents.results import agent_result
from swe_ai_fleet.agents.resumption import WorkspaceKeeper, read_run, resume
from swe_ai_fleet.agents.revising import EarlierWork
from swe_ai_fleet.agents.solving import Consent, solve
from swe_ai_fleet.domain.candidate import Artifacts, Candidate
from swe_ai_fleet.domain.errand import Assignment
from swe_ai_fleet.domain.event import RunFinished
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.owner import Owner
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import Clone, Journal, ResultBus
from swe_ai_fleet.tools.audit import AuditTrail

PATCH_MEDIA_TYPE = "text/x-diff"


@dataclass(frozen=True, kw_only=True)
class CodingRun:
    """Carries out `Assignment`s.

    People have `approval_timeout_seconds` to decide what waits for them (0: for ever). A workspace is stored while the
    model thinks, no more often than every `checkpoint_seconds`.
    """

    services: RunServices
    results: ResultBus
    approval_timeout_seconds: float = 0.0
    checkpoint_seconds: float = 20.0

    async def carry_out(self, assignment: Assignment, clone: Clone) -> Candidate:
        """Run the agent in the clone, record each step, publish and hand in what it leaves.

        A run that waits for a person hands in nothing: it has the stop reason `awaiting_approval`, and goes on in
        another clone when it is assigned again to be resumed.

        Raises ModelError before the first step, Fenced, Unavailable; a cancellation passes after it was recorded.
        """
        async with self.services.recorded(assignment, resumes=assignment.resume) as run:
            return await self._hand_in(assignment, clone, run.journal, run.trail)

    async def _hand_in(self, assignment: Assignment, clone: Clone, journal: Journal, trail: AuditTrail) -> Candidate:
        task, keeper = assignment.task, self._keeper(assignment, clone, journal, trail)
        works = EarlierWork(log=self.services.log, blobs=self.services.blobs, mask=self.services.equipment.mask)
        if assignment.resume:
            earlier, revision = await self._earlier(assignment, keeper, works)
        else:
            earlier, revision = None, await works.restore(assignment, clone)
        if earlier is not None and (done := earlier.finished) and done.stop_reason is not StopReason.CANCELLED:
            return candidate_of(assignment, done, model=earlier.started.model if earlier.started else "", at=now())
        solution = await solve(
            task,
            clone,
            equipment=self.services.equipment,
            trail=trail,
            journal=journal,
            store=lambda data: self.services.blobs.put(task.tenant, assignment.execution_id, data, "text/plain"),
            perspective=assignment.perspective,
            consent=Consent(keep=keeper.keep, timeout_seconds=self.approval_timeout_seconds),
            earlier=earlier,
            keeping=Keeping(keep=keeper.keep, every_seconds=self.checkpoint_seconds),
            revision=revision,
            background=assignment.background,
        )
        trajectory = solution.trajectory
        finished = RunFinished(
            stop_reason=trajectory.stop_reason,
            artifacts=Artifacts(),
            usage=trajectory.usage,
            audit_head=trail.head,
            answer=self.services.equipment.mask(trajectory.answer),
            error=trajectory.error,
        )
        if trajectory.stop_reason is StopReason.AWAITING_APPROVAL:
            return candidate_of(assignment, finished, model=solution.model, at=now())
        patch = await self.services.blobs.put(
            task.tenant, assignment.execution_id, solution.diff.patch, PATCH_MEDIA_TYPE
        )
        finished = replace(finished, artifacts=solution.artifacts(patch))
        event = await journal.append(finished)
        if trajectory.stop_reason is not StopReason.CANCELLED:
            await keeper.release()
        candidate = candidate_of(assignment, finished, model=solution.model, at=event.at)
        await self.results.publish(
            tenant=task.tenant,
            task_id=task.task_id,
            execution_id=assignment.execution_id,
            agent_id=assignment.agent_id,
            payload=agent_result(candidate, task, trail.entries, solution.diff.patch),
        )
        return candidate

    def _keeper(self, assignment: Assignment, clone: Clone, journal: Journal, trail: AuditTrail) -> WorkspaceKeeper:
        owner = Owner(tenant=assignment.task.tenant, execution_id=assignment.execution_id)
        return WorkspaceKeeper(
            clone=clone,
            journal=journal,
            blobs=self.services.blobs,
            owner=owner,
            trail=trail,
            max_bytes=assignment.checkpoint_bytes,
        )

    async def _earlier(
        self, assignment: Assignment, keeper: WorkspaceKeeper, works: EarlierWork
    ) -> tuple[RunState, SecondGo | None]:
        """Where the run stands, with clone and trail put there. Its last owner can write nothing more by now.

        A checkpoint has the work that is revised in it.
        """
        await keeper.journal.flush()
        earlier = await read_run(
            self.services.log, assignment.task.tenant, assignment.execution_id, assignment.agent_id
        )
        revision = None if earlier.checkpoint is not None else await works.restore(assignment, keeper.clone)
        return await resume(earlier, keeper, self.services.blobs), revision


def candidate_of(assignment: Assignment, finished: RunFinished, *, model: str, at: str) -> Candidate:
    """What a finished run hands in."""
    return Candidate(
        candidate_id=assignment.agent_id,
        agent_id=assignment.agent_id,
        role=assignment.task.role,
        summary=finished.answer,
        stop_reason=finished.stop_reason,
        artifacts=finished.artifacts,
        usage=finished.usage,
        audit_head=finished.audit_head,
        submitted_at=at,
        model=model,
        error=finished.error,
        author_id=assignment.author_id,
        round=assignment.revision.round if assignment.revision else 0,
        revises=assignment.revision.candidate.candidate_id if assignment.revision else "",
    )
