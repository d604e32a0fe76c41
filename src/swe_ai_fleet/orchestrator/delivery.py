"""Delivery: a winner becomes a branch of the target repository; patch and bundle go to those who can't reach it.

A person may have any candidate delivered after the end of its execution, whatever the evidence says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from swe_ai_fleet.domain.assignment import CheckAssignment
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Delivered, Verdict
from swe_ai_fleet.domain.errors import NotFound, PermissionDenied, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.event import CandidateDelivered, RefusedKept, WinnerDelivered
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, Task, TaskKind, check_branch
from swe_ai_fleet.orchestrator.approvals import control
from swe_ai_fleet.orchestrator.deliberation import Conclusion
from swe_ai_fleet.orchestrator.execution_context import ExecutionContext
from swe_ai_fleet.orchestrator.integration import BUNDLE_TYPE, PATCH_TYPE, commit_message
from swe_ai_fleet.ports import BlobStore, EventLog, Repositories

REFUSED = "refs/fleet/refused"
"""Below this, the best candidate of each task in which nobody won."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Delivering:
    """Brings what an execution came to to its target repository."""

    work: ExecutionContext

    async def deliver(self, winner: Candidate, evidence: CheckReport | None = None) -> CheckReport:
        """Commit the winner and record it; what the checks say of the delivered commit.

        Where its tree is the one that the candidate's evidence is about, that evidence stands; otherwise (somebody else
        made the tree) the checks run on the delivered commit. Raises PatchRejected, PreconditionFailed (the branch is
        taken or checked out), Unavailable, AgentLost.
        """
        task, repository = self.work.task, self.work.repository
        patch = winner.artifacts.patch
        content = await self.work.deps.blobs.get(patch) if patch else b""
        delivery = _delivery(task)
        delivery = replace(delivery, message=delivery.message or commit_message(task, winner, evidence))
        delivered = await self.work.deps.workspaces.deliver(task.execution_id, repository, content, delivery)
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
        candidate = next(
            candidate_found
            for candidate_found in conclusion.candidates
            if candidate_found.candidate_id == best.candidate_id
        )
        report, patch = conclusion.reports.get(best.candidate_id), candidate.artifacts.patch
        if patch is None or report is None or not report.tree:
            return  # it cannot be applied, or changes nothing
        delivered = await self.work.deps.workspaces.keep(
            task.execution_id,
            self.work.repository,
            await self.work.deps.blobs.get(patch),
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
            whole = (await self.work.deps.workspaces.export(head, repository.commit, delivery.branch)).patch
            delivered = await self.work.deps.workspaces.deliver(task.execution_id, repository, whole, delivery)
            head = replace(repository, commit=delivered.commit_sha)
        else:
            delivered = await self.work.deps.workspaces.publish(task.execution_id, head, since, delivery)
        return await self._exported(head, delivered)

    async def _exported(self, head: PinnedRepository, delivered: Delivered) -> Delivered:
        """The delivered branch with its patch and its bundle in the store; without them where they are too large."""
        task, repository = self.work.task, self.work.repository
        try:
            exported = await self.work.deps.workspaces.export(
                head, repository.commit, delivered.branch, since=repository.shared_commit
            )
        except ResourceExhausted:
            return delivered
        owner = (task.tenant, task.execution_id)
        return replace(
            delivered,
            patch=await self.work.deps.blobs.put(*owner, exported.patch, PATCH_TYPE),
            bundle=await self.work.deps.blobs.put(*owner, exported.bundle, BUNDLE_TYPE) if exported.bundle else None,
        )


def at_delivered(repository: PinnedRepository, delivered: Delivered) -> PinnedRepository:
    """The delivered commit, for every node."""
    if delivered.bundle is None:
        return replace(repository, commit=delivered.commit_sha)
    return replace(repository, commit=delivered.commit_sha, bundle=delivered.bundle, snapshot_of="")


def _delivery(task: Task) -> Delivery:
    return replace(task.delivery, branch=task.delivery.branch or f"fleet/{task.task_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandDelivery:
    """What a person asks for. Without a `branch` it is `fleet/<task>-<candidate>`.

    `by` is who has it done, in words; `caller` is who authenticated, empty where callers cannot be told apart.
    """

    candidate_id: str
    by: str
    caller: str = ""
    reason: str = ""
    branch: str = ""
    push: bool = False


@dataclass(frozen=True, kw_only=True)
class HandDeliveries:
    """Delivers candidates of ended executions; who had it done stands in the log and in the commit.

    Attributes:
        log: Where it stands.
        blobs: Has the patches.
        workspaces: Delivers.
        get: An execution as its events tell it now. Raises NotFound.
    """

    log: EventLog
    blobs: BlobStore
    workspaces: Repositories
    get: Callable[[str, str], Awaitable[ExecutionState]]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def deliver(self, tenant: str, execution_id: str, asked: HandDelivery) -> Delivered:
        """Put a candidate on a branch. The same again changes nothing.

        Raises NotFound (no such candidate), PreconditionFailed (it has not ended, the candidate changed nothing, the
        branch is taken), PermissionDenied (they handed the task in, and only what evidence verifies may win),
        PatchRejected, Unavailable.
        """
        async with self._turn:
            state = await self.get(tenant, execution_id)
            candidate = state.candidates.get(asked.candidate_id)
            if candidate is None:
                known = ", ".join(sorted(state.candidates)) or "none"
                raise NotFound(
                    f"the execution has no candidate {asked.candidate_id[:64]!r}",
                    field="candidate_id",
                    hint=f"one of: {known}",
                )
            if not state.status.terminal:
                raise PreconditionFailed(
                    "the execution has not ended", field="execution_id", hint="wait until it has ended"
                )
            if candidate.artifacts.patch is None or not candidate.artifacts.patch.size:
                raise PreconditionFailed("the candidate has no changes", field="candidate_id")
            delivery = self._delivery(state, asked)
            report = state.reports.get(asked.candidate_id)
            _check_overruling(state, report, asked)
            trailer = f"Fleet-Delivered-By: {asked.by}"
            message = commit_message(state.task, candidate, report).rstrip()
            delivered = await self.workspaces.deliver(
                state.execution_id,
                state.repository,
                await self.blobs.get(candidate.artifacts.patch),
                replace(delivery, message=f"{message}\n{trailer}\n"),
            )
            done = CandidateDelivered(
                candidate_id=asked.candidate_id, delivered=delivered, by=asked.by, reason=asked.reason
            )
            if not any(known.delivered == delivered for known in state.hand_deliveries):
                await self.log.tell(control(state.task), done)
            return delivered

    def _delivery(self, state: ExecutionState, asked: HandDelivery) -> Delivery:
        given = state.task.delivery if state.task.kind is TaskKind.ORCHESTRATE else Delivery()
        branch = asked.branch or f"fleet/{state.task.task_id}-{asked.candidate_id}"
        check_branch(branch, field="branch")
        return replace(given, branch=branch, push=asked.push, message="")


def _check_overruling(state: ExecutionState, report: CheckReport | None, asked: HandDelivery) -> None:
    """Refuse that whoever handed a task in has delivered what its evidence refused. Raises PermissionDenied."""
    verified = report is not None and report.verdict is Verdict.VERIFIED
    if verified or not state.task.constraints.require_verified or asked.caller != (state.task.caller or None):
        return
    _log.warning(
        "delivery.refused",
        tenant=state.task.tenant,
        execution_id=state.execution_id,
        candidate_id=asked.candidate_id,
        caller=asked.caller,
    )
    raise PermissionDenied(
        "the submitter of a task cannot overrule its evidence", field="candidate_id", hint="ask another approver"
    )
