"""Delivery: the winner of a deliberation becomes a commit on a branch, and is checked once more where it stands."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swe_ai_fleet.domain.candidate import Candidate, CheckAssignment, CheckReport, Delivered
from swe_ai_fleet.domain.event import WinnerDelivered
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.ports import BlobStore, Fleet, Journal, WorkspaceProvider

SUBJECT_LENGTH = 72


@dataclass(frozen=True, kw_only=True)
class Delivering:
    """Brings winners to their target repositories."""

    workspaces: WorkspaceProvider
    blobs: BlobStore
    fleet: Fleet

    async def deliver(
        self, task: Task, repository: PinnedRepository, winner: Candidate, journal: Journal
    ) -> tuple[Delivered, CheckReport]:
        """Commit the winner, run the checks on the delivered commit, record both.

        Raises PatchRejected, PreconditionFailed (the branch is taken or checked out), Unavailable.
        """
        patch = winner.artifacts.patch
        content = await self.blobs.get(patch) if patch else b""
        delivery = replace(
            task.delivery,
            branch=task.delivery.branch or f"fleet/{task.task_id}",
            message=task.delivery.message or commit_message(task, winner),
        )
        delivered = await self.workspaces.deliver(task.execution_id, repository, content, delivery)
        report = await self.fleet.check(
            CheckAssignment(
                execution_id=task.execution_id,
                candidate_id=winner.candidate_id,
                task=task,
                repository=replace(repository, commit=delivered.commit_sha),
            )
        )
        await journal.append(WinnerDelivered(delivered=delivered, report=report))
        return delivered, report


def commit_message(task: Task, winner: Candidate) -> str:
    """The task's first line as subject, the agent's summary as body, and trailers that lead back to the execution."""
    subject = task.description.strip().splitlines()[0]
    if len(subject) > SUBJECT_LENGTH:
        subject = subject[: SUBJECT_LENGTH - 1].rstrip() + "…"
    trailers = (
        f"Fleet-Task: {task.task_id}",
        f"Fleet-Execution: {task.execution_id}",
        f"Fleet-Agent: {winner.agent_id}",
        f"Fleet-Audit-Head: {winner.audit_head}",
    )
    return "\n\n".join(part for part in (subject, winner.summary.strip()[:4000], "\n".join(trailers)) if part) + "\n"
