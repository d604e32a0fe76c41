"""Delivery: what won becomes a branch of the target repository; patch and bundle go to those who can't reach it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Delivered
from swe_ai_fleet.domain.errand import CheckAssignment
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.domain.event import WinnerDelivered
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, Task
from swe_ai_fleet.orchestrator.agent_runs import AgentRuns
from swe_ai_fleet.orchestrator.commits import commit_message
from swe_ai_fleet.orchestrator.integration import BUNDLE_TYPE, PATCH_TYPE
from swe_ai_fleet.ports import BlobStore, Journal, Repositories


@dataclass(frozen=True, kw_only=True)
class Delivering:
    """Brings winners to their target repositories."""

    workspaces: Repositories
    blobs: BlobStore
    runs: AgentRuns

    async def deliver(
        self, task: Task, repository: PinnedRepository, winner: Candidate, journal: Journal
    ) -> tuple[Delivered, CheckReport]:
        """Commit the winner, run the checks on the delivered commit, record both.

        Raises PatchRejected, PreconditionFailed (the branch is taken or checked out), Unavailable, AgentLost.
        """
        patch = winner.artifacts.patch
        content = await self.blobs.get(patch) if patch else b""
        delivery = _delivery(task)
        delivery = replace(delivery, message=delivery.message or commit_message(task, winner))
        delivered = await self.workspaces.deliver(task.execution_id, repository, content, delivery)
        delivered = await self._exported(task, repository, replace(repository, commit=delivered.commit_sha), delivered)
        report = await self.runs.check(
            CheckAssignment(
                execution_id=task.execution_id,
                candidate_id=winner.candidate_id,
                task=task,
                repository=at_delivered(repository, delivered),
                baseline=repository,
            )
        )
        await journal.append(WinnerDelivered(delivered=delivered, report=report))
        return delivered, report

    async def publish(self, task: Task, repository: PinnedRepository, head: PinnedRepository) -> Delivered:
        """Deliver an integration branch: its commits as they are, or as one where the task has a commit message.

        Raises PreconditionFailed (the branch is taken or checked out), Unavailable.
        """
        delivery, since = _delivery(task), _since(repository)
        if delivery.message:
            whole = (await self.workspaces.export(head, repository.commit, delivery.branch)).patch
            delivered = await self.workspaces.deliver(task.execution_id, repository, whole, delivery)
            head = replace(repository, commit=delivered.commit_sha)
        else:
            delivered = await self.workspaces.publish(task.execution_id, head, since, delivery)
        return await self._exported(task, repository, head, delivered)

    async def _exported(
        self, task: Task, repository: PinnedRepository, head: PinnedRepository, delivered: Delivered
    ) -> Delivered:
        """The delivered branch with its patch and its bundle in the store; without them where they are too large."""
        try:
            exported = await self.workspaces.export(head, repository.commit, delivered.branch, since=_since(repository))
        except ResourceExhausted:
            return delivered
        owner = (task.tenant, task.execution_id)
        return replace(
            delivered,
            patch=await self.blobs.put(*owner, exported.patch, PATCH_TYPE),
            bundle=await self.blobs.put(*owner, exported.bundle, BUNDLE_TYPE) if exported.bundle else None,
        )


def at_delivered(repository: PinnedRepository, delivered: Delivered) -> PinnedRepository:
    """The delivered commit, for every node."""
    if delivered.bundle is None:
        return replace(repository, commit=delivered.commit_sha)
    return replace(repository, commit=delivered.commit_sha, bundle=delivered.bundle, snapshot_of="")


def _delivery(task: Task) -> Delivery:
    return replace(task.delivery, branch=task.delivery.branch or f"fleet/{task.task_id}")


def _since(repository: PinnedRepository) -> str:
    """The last commit that is also where the repository is."""
    return repository.snapshot_of or repository.commit
