"""Coding assignments: one recorded agent run, whose changes are submitted as a candidate.

For a revision, the author's clone has its earlier candidate, and its prompt has the critiques of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.agents.opening import RevisionPrompt
from swe_ai_fleet.agents.prompting import Fence, critique_text, evidence, rendered
from swe_ai_fleet.agents.recorded_run import read_run, run_finished
from swe_ai_fleet.agents.results import agent_result, tool_record
from swe_ai_fleet.agents.run_deps import RunContext, RunDeps, RunRecorder
from swe_ai_fleet.agents.solving import Consent, Solver
from swe_ai_fleet.agents.spec import opening_of, run_agent
from swe_ai_fleet.domain.assignment import CodingAssignment, Opening, OpeningAssignment
from swe_ai_fleet.domain.candidate import Candidate, Perspective
from swe_ai_fleet.domain.errors import PatchRejected
from swe_ai_fleet.domain.event import RunFinished
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import Clone, ResultBus
from swe_ai_fleet.tools.audit import AuditTrail

MAX_DIFF_CHARS = 24_000
MAX_EVIDENCE_CHARS = 12_000
MAX_SUMMARY_CHARS = 4_000
MAX_CRITIQUE_CHARS = 6_000


@dataclass(frozen=True, kw_only=True)
class CandidateRun:
    """The base of runs that submit a candidate."""

    recorder: RunRecorder
    results: ResultBus

    async def revision_prompt(
        self, assignment: CodingAssignment, run: RunContext, clone: Clone
    ) -> RevisionPrompt | None:
        """Apply the patch to be revised; the prompt for its author: changes, evidence, and critiques without names.

        It starts with the messages of the author's first run, byte for byte: the model server has them in its cache,
        and they describe the untouched repository, which this clone no longer is. Raises NotFound, Unavailable.
        """
        revision = assignment.revision
        # A checkpoint contains the patch already.
        if revision is None or run.earlier.checkpoint is not None:
            return None
        recorder, ref = self.recorder, revision.candidate.artifacts.patch
        patch = await recorder.blobs.get(ref) if ref is not None else b""
        try:
            await clone.apply(patch)
            applied = True
        except PatchRejected:
            applied = False
        task, author, mask = assignment.task, assignment.author_id or assignment.agent_id, recorder.deps.mask
        first = (await read_run(recorder.log, task.tenant, assignment.execution_id, author)).started
        candidate = revision.candidate
        fence = Fence(mask, task.execution_id, "revision", candidate.candidate_id, str(revision.round))
        # Sorted, so that the order does not show when each was written; failed critiques are left out.
        critiques = sorted(
            (critique for critique in revision.critiques if not critique.error),
            key=lambda critique: (critique.round, critique.reviewer_id),
        )
        text = rendered(
            "revision",
            applied=applied,
            warning=fence.warning,
            changes=fence(patch.decode("utf-8", "replace"), MAX_DIFF_CHARS),
            summary=fence(candidate.summary, MAX_SUMMARY_CHARS),
            evidence=evidence(revision.report, fence, MAX_EVIDENCE_CHARS),
            reviews=[
                {
                    "verdict": str(critique.verdict),
                    "score": f"{critique.score:g} of 1",
                    "text": fence(critique_text(critique), MAX_CRITIQUE_CHARS),
                }
                for critique in critiques
            ],
        )
        return RevisionPrompt(text=text, first=first.messages if first is not None else ())

    async def submit(
        self, assignment: CodingAssignment, run: RunContext, finished: RunFinished, patch: bytes, *, model: str
    ) -> Candidate:
        """Record the end of a run and publish its result; the candidate. Raises Fenced, Unavailable."""
        candidate = candidate_of(assignment, finished, model=model, at=await run.end(finished))
        task, execution_id, agent_id = assignment.task, assignment.execution_id, assignment.agent_id
        record = run.record or await tool_record(self.recorder.log, task.tenant, execution_id, agent_id)
        await self.results.publish(
            tenant=task.tenant,
            task_id=task.task_id,
            execution_id=execution_id,
            agent_id=agent_id,
            payload=agent_result(candidate, task, record, patch),
        )
        return candidate


@dataclass(frozen=True, kw_only=True)
class CodingRun(CandidateRun):
    """Runs `CodingAssignment`s.

    People have `approval_timeout_seconds` to decide a request (0: for ever). A workspace is checkpointed during calls
    to the model, at most every `checkpoint_seconds`.
    """

    approval_timeout_seconds: float = 0.0
    checkpoint_seconds: float = 20.0

    async def run(self, assignment: CodingAssignment, clone: Clone) -> Candidate:
        """Run the agent in the clone, record each step, publish the result and submit the candidate.

        A run that waits for a person submits nothing: its stop reason is `awaiting_approval`, and it is resumed in
        another clone when it is assigned again.

        Raises ModelError before the first step, Fenced, Unavailable; a cancellation passes after it was recorded.
        """
        async with self.recorder.claimed(assignment, clone) as run:
            if (submitted := submitted_before(assignment, run)) is not None:
                return submitted
            if run.keeper is not None:
                run.keeper.max_bytes = assignment.checkpoint_bytes
            solver = Solver(
                assignment,
                clone,
                run,
                revision=await self.revision_prompt(assignment, run, clone),
                consent=Consent(timeout_seconds=self.approval_timeout_seconds),
                checkpoint_seconds=self.checkpoint_seconds,
            )
            solution = await run_agent(solver, run)
            trajectory, patch = solution.trajectory, solution.diff.patch
            is_waiting = trajectory.stop_reason is StopReason.AWAITING_APPROVAL
            finished = run_finished(
                run.trail,
                trajectory.stop_reason,
                trajectory.usage,
                artifacts=None if is_waiting else solution.artifacts(await self.recorder.keep_patch(assignment, patch)),
                answer=run.deps.mask(trajectory.answer),
                error=trajectory.error,
            )
            if is_waiting:
                return candidate_of(assignment, finished, model=solution.model, at=now())
            return await self.submit(assignment, run, finished, patch, model=solution.model)


@dataclass(frozen=True, kw_only=True)
class OpeningRun:
    deps: RunDeps

    async def run(self, assignment: OpeningAssignment, clone: Clone) -> Opening:
        """The opening of the task's first agent in this clone. Raises ModelError, InvalidRequest."""
        task, agent_id = assignment.task, assignment.agent_id
        coding = CodingAssignment(
            execution_id=assignment.execution_id,
            agent_id=agent_id,
            task=task,
            repository=assignment.repository,
            perspective=Perspective(model_profile=next(iter(task.profiles), "")),
            background=assignment.background,
        )
        trail = AuditTrail(execution_id=assignment.execution_id, agent_id=agent_id)
        run = RunContext(deps=self.deps, trail=trail)
        return await opening_of(Solver(coding, clone, run), run)


def submitted_before(assignment: CodingAssignment, run: RunContext) -> Candidate | None:
    """The candidate of a run that ended in an earlier process; None if it can be resumed."""
    started, done = run.earlier.started, run.earlier.finished
    if done is None or done.stop_reason is StopReason.CANCELLED:
        return None
    return candidate_of(assignment, done, model=started.model if started else "", at=now())


def candidate_of(assignment: CodingAssignment, finished: RunFinished, *, model: str, at: str) -> Candidate:
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
