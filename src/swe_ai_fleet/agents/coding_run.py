"""Coding assignments: one agent run, each step recorded, its changes handed in as a candidate.

In a revision the author has its earlier candidate in its clone, and in its prompt what reviewers said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from swe_ai_fleet.agents.opening import SecondGo, revision_text
from swe_ai_fleet.agents.prompting import Fence, evidence, in_words
from swe_ai_fleet.agents.recorded_run import run_finished
from swe_ai_fleet.agents.results import agent_result
from swe_ai_fleet.agents.solving import Consent, Solver
from swe_ai_fleet.agents.spec import RunContext, RunServices
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.candidate import Candidate, Revision
from swe_ai_fleet.domain.errors import PatchRejected
from swe_ai_fleet.domain.event import RunFinished, RunStarted
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import BlobStore, Clone, EventLog, ResultBus, SecretMask

MAX_DIFF_CHARS = 24_000
MAX_EVIDENCE_CHARS = 12_000
MAX_SUMMARY_CHARS = 4_000
MAX_CRITIQUE_CHARS = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierWork:
    """Puts what an author handed in before into a clean clone.

    Args:
        log: Has the author's first run.
        blobs: Has the patch.
        mask: Hides secrets.
    """

    log: EventLog
    blobs: BlobStore
    mask: SecretMask

    async def restore(self, assignment: CodingAssignment, clone: Clone) -> SecondGo | None:
        """Apply the patch of the candidate that is revised; what the author is told, None for a first draft.

        It begins with what the author's first run began with, to the byte: a model server has that in its cache, and
        the repository as all candidates are shown it is not the one in this clone.

        Raises NotFound (the patch is gone), Unavailable.
        """
        revision, task = assignment.revision, assignment.task
        if revision is None:
            return None
        ref = revision.candidate.artifacts.patch
        patch = await self.blobs.get(ref) if ref is not None else b""
        try:
            await clone.apply(patch)
            applied = True
        except PatchRejected:
            applied = False
        text = told(revision, patch, applied=applied, execution_id=task.execution_id, mask=self.mask)
        return SecondGo(text=text, first=await self._first(assignment))

    async def _first(self, assignment: CodingAssignment) -> tuple[Message, ...]:
        events = self.log.read(
            assignment.task.tenant, assignment.execution_id, agent_id=assignment.author_id or assignment.agent_id
        )
        async with aclosing(events) as stored:
            async for one in stored:
                if isinstance(one.event.body, RunStarted):
                    return one.event.body.messages
        return ()


def told(revision: Revision, patch: bytes, *, applied: bool, execution_id: str, mask: SecretMask) -> str:
    """What an author is told behind the opening: its changes, the evidence, and the critiques without names.

    Args:
        revision: What is revised.
        patch: The changes of the earlier candidate.
        applied: Whether the clone has them.
        execution_id: Of the task.
        mask: Hides secrets.
    """
    candidate = revision.candidate
    fence = Fence(mask, execution_id, "revision", candidate.candidate_id, str(revision.round))
    return revision_text(
        applied=applied,
        warning=fence.warning,
        changes=fence(patch.decode("utf-8", "replace"), MAX_DIFF_CHARS),
        summary=fence(candidate.summary, MAX_SUMMARY_CHARS),
        evidence=evidence(revision.report, fence, MAX_EVIDENCE_CHARS),
        reviews=[
            {
                "verdict": str(one.verdict),
                "score": f"{one.score:g} of 1",
                "text": fence(in_words(one), MAX_CRITIQUE_CHARS),
            }
            for one in _heard(revision.critiques)
        ],
    )


def _heard(critiques: Sequence[Critique]) -> list[Critique]:
    """The critiques that say something, in an order that tells nothing of who wrote them when."""
    return sorted((one for one in critiques if not one.error), key=lambda one: (one.round, one.reviewer_id))


@dataclass(frozen=True, kw_only=True)
class CodingRun:
    """Has tasks solved, as `CodingAssignment`s say.

    People have `approval_timeout_seconds` to decide what waits for them (0: for ever). A workspace is stored while the
    model thinks, no more often than every `checkpoint_seconds`.
    """

    services: RunServices
    results: ResultBus
    approval_timeout_seconds: float = 0.0
    checkpoint_seconds: float = 20.0

    async def run(self, assignment: CodingAssignment, clone: Clone) -> Candidate:
        """Run the agent in the clone, record each step, publish and hand in what it leaves.

        A run that waits for a person hands in nothing: it has the stop reason `awaiting_approval`, and goes on in
        another clone when it is assigned again to be resumed.

        Raises ModelError before the first step, Fenced, Unavailable; a cancellation passes after it was recorded.
        """
        async with self.services.claimed(assignment, clone) as run:
            if (known := handed_in(assignment, run)) is not None:
                return known
            if run.keeper is not None:
                run.keeper.max_bytes = assignment.checkpoint_bytes
            works = EarlierWork(log=self.services.log, blobs=self.services.blobs, mask=run.equipment.mask)
            solution = await Solver(
                assignment,
                clone,
                run,
                # A checkpoint has the work that is revised in it.
                revision=await works.restore(assignment, clone) if run.earlier.checkpoint is None else None,
                consent=Consent(timeout_seconds=self.approval_timeout_seconds),
                checkpoint_seconds=self.checkpoint_seconds,
            ).solve()
            trajectory, patch = solution.trajectory, solution.diff.patch
            waits = trajectory.stop_reason is StopReason.AWAITING_APPROVAL
            finished = run_finished(
                run.trail,
                trajectory.stop_reason,
                trajectory.usage,
                artifacts=None if waits else solution.artifacts(await self.services.keep_patch(assignment, patch)),
                answer=run.equipment.mask(trajectory.answer),
                error=trajectory.error,
            )
            if waits:
                return candidate_of(assignment, finished, model=solution.model, at=now())
            return await hand_in(assignment, run, finished, patch, model=solution.model, results=self.results)


def handed_in(assignment: CodingAssignment, run: RunContext) -> Candidate | None:
    """What a run handed in that an earlier process had brought to its end; None where it can go on."""
    started, done = run.earlier.started, run.earlier.finished
    if done is None or done.stop_reason is StopReason.CANCELLED:
        return None
    return candidate_of(assignment, done, model=started.model if started else "", at=now())


async def hand_in(
    assignment: CodingAssignment,
    run: RunContext,
    finished: RunFinished,
    patch: bytes,
    *,
    model: str,
    results: ResultBus,
) -> Candidate:
    """End a run with what it leaves, and publish that. Raises Fenced, Unavailable."""
    candidate = candidate_of(assignment, finished, model=model, at=await run.end(finished))
    await results.publish(
        tenant=assignment.task.tenant,
        task_id=assignment.task.task_id,
        execution_id=assignment.execution_id,
        agent_id=assignment.agent_id,
        payload=agent_result(candidate, assignment.task, run.trail.entries, patch),
    )
    return candidate


def candidate_of(assignment: CodingAssignment, finished: RunFinished, *, model: str, at: str) -> Candidate:
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
