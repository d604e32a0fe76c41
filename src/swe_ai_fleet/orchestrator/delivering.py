"""Delivery: what won becomes a branch of the target repository; patch and bundle go to those who can't reach it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Delivered
from swe_ai_fleet.domain.errand import CheckAssignment
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.domain.event import RefusedKept, WinnerDelivered
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, Task
from swe_ai_fleet.orchestrator.commits import commit_message
from swe_ai_fleet.orchestrator.deliberate import Conclusion
from swe_ai_fleet.orchestrator.integration import BUNDLE_TYPE, PATCH_TYPE
from swe_ai_fleet.orchestrator.underway import Underway

REFUSED = "refs/fleet/refused"
"""Below this, the best candidate of each task in which nobody won."""


@dataclass(frozen=True, kw_only=True)
class Delivering:
    """Brings what an execution came to to its target repository."""

    work: Underway

    async def deliver(self, winner: Candidate, evidence: CheckReport | None = None) -> CheckReport:
        """Commit the winner and record it; what the checks say of the delivered commit.

        Where its tree is the one that the candidate's evidence is about, that evidence stands; otherwise (somebody else
        made the tree) the checks run on the delivered commit. Raises PatchRejected, PreconditionFailed (the branch is
        taken or checked out), Unavailable, AgentLost.
        """
        task, repository = self.work.task, self.work.repository
        patch = winner.artifacts.patch
        content = await self.work.blobs.get(patch) if patch else b""
        delivery = _delivery(task)
        delivery = replace(delivery, message=delivery.message or commit_message(task, winner, evidence))
        delivered = await self.work.workspaces.deliver(task.execution_id, repository, content, delivery)
        delivered = await self._exported(replace(repository, commit=delivered.commit_sha), delivered)
        report = evidence
        if report is None or not delivered.tree or report.tree != delivered.tree:
            report = await self.work.runs.check(
                CheckAssignment(
                    execution_id=task.execution_id,
                    candidate_id=winner.candidate_id,
                    task=task,
                    repository=at_delivered(repository, delivered),
                    baseline=repository,
                )
            )
            beside = evidence.verdict if evidence is not None else None
            if evidence is not None and beside and report.verdict and beside.rank < report.verdict.rank:
                # Nobody else's tests ran there: what they said of the candidate stands.
                report = replace(report, verdict=beside, reasons=evidence.reasons)
        await self.work.journal.append(WinnerDelivered(delivered=delivered, report=report))
        return report

    async def keep_best(self, conclusion: Conclusion) -> None:
        """Keep the best candidate of those that did not win as a commit, for people; nothing where it has none."""
        if self.work.known.refused_kept is not None or not conclusion.ranking:
            return
        task, best = self.work.task, conclusion.ranking[0]
        candidate = next(one for one in conclusion.candidates if one.candidate_id == best.candidate_id)
        report, patch = conclusion.reports.get(best.candidate_id), candidate.artifacts.patch
        if patch is None or report is None or not report.tree:
            return  # it cannot be applied, or changes nothing
        delivered = await self.work.workspaces.keep(
            task.execution_id,
            self.work.repository,
            await self.work.blobs.get(patch),
            f"{REFUSED}/{task.task_id}",
            commit_message(task, candidate, report),
        )
        await self.work.journal.append(RefusedKept(candidate_id=best.candidate_id, delivered=delivered))

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
