"""Delivery: what won becomes a branch of the target repository; patch and bundle go to those who can't reach it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Delivered
from swe_ai_fleet.domain.errand import CheckAssignment
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.domain.event import WinnerDelivered
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, Task
from swe_ai_fleet.orchestrator.commits import commit_message
from swe_ai_fleet.orchestrator.integration import BUNDLE_TYPE, PATCH_TYPE
from swe_ai_fleet.orchestrator.underway import Underway


@dataclass(frozen=True, kw_only=True)
class Delivering:
    """Brings what an execution came to to its target repository."""

    work: Underway

    async def deliver(self, winner: Candidate) -> CheckReport:
        """Commit the winner, run the checks on the delivered commit, record both; what the checks say.

        Raises PatchRejected, PreconditionFailed (the branch is taken or checked out), Unavailable, AgentLost.
        """
        task, repository = self.work.task, self.work.repository
        patch = winner.artifacts.patch
        content = await self.work.blobs.get(patch) if patch else b""
        delivery = _delivery(task)
        delivery = replace(delivery, message=delivery.message or commit_message(task, winner))
        delivered = await self.work.workspaces.deliver(task.execution_id, repository, content, delivery)
        delivered = await self._exported(replace(repository, commit=delivered.commit_sha), delivered)
        report = await self.work.runs.check(
            CheckAssignment(
                execution_id=task.execution_id,
                candidate_id=winner.candidate_id,
                task=task,
                repository=at_delivered(repository, delivered),
                baseline=repository,
            )
        )
        await self.work.journal.append(WinnerDelivered(delivered=delivered, report=report))
        return report

    async def publish(self, head: PinnedRepository) -> Delivered:
        """Deliver an integration branch: its commits as they are, or as one where the task has a commit message.

        Raises PreconditionFailed (the branch is taken or checked out), Unavailable.
        """
        task, repository = self.work.task, self.work.repository
        delivery, since = _delivery(task), repository.shared_commit
        if delivery.message:
            whole = (await self.work.workspaces.export(head, repository.commit, delivery.branch)).patch
            delivered = await self.work.workspaces.deliver(task.execution_id, repository, whole, delivery)
            head = replace(repository, commit=delivered.commit_sha)
        else:
            delivered = await self.work.workspaces.publish(task.execution_id, head, since, delivery)
        return await self._exported(head, delivered)

    async def _exported(self, head: PinnedRepository, delivered: Delivered) -> Delivered:
        """The delivered branch with its patch and its bundle in the store; without them where they are too large."""
        task, repository = self.work.task, self.work.repository
        try:
            exported = await self.work.workspaces.export(
                head, repository.commit, delivered.branch, since=repository.shared_commit
            )
        except ResourceExhausted:
            return delivered
        owner = (task.tenant, task.execution_id)
        return replace(
            delivered,
            patch=await self.work.blobs.put(*owner, exported.patch, PATCH_TYPE),
            bundle=await self.work.blobs.put(*owner, exported.bundle, BUNDLE_TYPE) if exported.bundle else None,
        )


def at_delivered(repository: PinnedRepository, delivered: Delivered) -> PinnedRepository:
    """The delivered commit, for every node."""
    if delivered.bundle is None:
        return replace(repository, commit=delivered.commit_sha)
    return replace(repository, commit=delivered.commit_sha, bundle=delivered.bundle, snapshot_of="")


def _delivery(task: Task) -> Delivery:
    return replace(task.delivery, branch=task.delivery.branch or f"fleet/{task.task_id}")
