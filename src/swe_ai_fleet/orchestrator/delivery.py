"""Delivery: a winner becomes a branch of the target repository, and a patch and a bundle for remote callers.

A person may have any candidate delivered after the end of its execution, whatever the evidence says.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from swe_ai_fleet.domain.assignment import CheckAssignment, CodingAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Delivered, Verdict
from swe_ai_fleet.domain.errors import (
    Fenced,
    FleetError,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    ResourceExhausted,
)
from swe_ai_fleet.domain.event import CandidateDelivered, RefusedKept, WinnerDelivered
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, Task, TaskKind
from swe_ai_fleet.domain.text import check_branch
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.approvals import control
from swe_ai_fleet.orchestrator.deliberation import Conclusion
from swe_ai_fleet.orchestrator.execution_context import ExecutionContext
from swe_ai_fleet.orchestrator.runs import TaskSpending, is_merge_run, merge_run
from swe_ai_fleet.ports import OURS, THEIRS, BlobStore, EventLog, Merge, MergeRequest, Repositories
from swe_ai_fleet.tools.truncation import beginning, truncate

SUBJECT_LENGTH = 72
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n")
_LEAST_WORDS = 3
_MAX_SUMMARY_CHARS = 4_000


def commit_message(task: Task, winner: Candidate, evidence: CheckReport | None = None) -> str:
    """A subject from the agent's summary or the task, the agent's summary as body, and trailers.

    The trailers name the execution and the verdict, so that the history shows which commits are not verified.
    """
    summary = winner.summary.strip()[:_MAX_SUMMARY_CHARS]
    subject = _subject(summary) or task.description.strip().splitlines()[0]
    if len(subject) > SUBJECT_LENGTH:
        subject = subject[:SUBJECT_LENGTH].rpartition(" ")[0].rstrip(" ,;:") or subject[: SUBJECT_LENGTH - 1] + "…"
    trailers = (
        f"Fleet-Task: {task.task_id}",
        f"Fleet-Execution: {task.execution_id}",
        f"Fleet-Agent: {winner.agent_id}",
        f"Fleet-Audit-Head: {winner.audit_head}",
        *([f"Fleet-Verdict: {evidence.verdict}"] if evidence is not None and evidence.verdict is not None else []),
    )
    # The body does not repeat the subject.
    body = "" if summary.rstrip(".") == subject else summary
    return "\n\n".join(part for part in (subject, body, "\n".join(trailers)) if part) + "\n"


def _subject(summary: str) -> str:
    """The first sentence of an agent's summary; empty where it is too short to say anything, as "Done." is."""
    first = _SENTENCE_END.split(summary, maxsplit=1)[0].strip("#*-_ `").rstrip(".")
    return first if len(first.split()) >= _LEAST_WORDS else ""


BUNDLE_TYPE = "application/x-git-bundle"
PATCH_TYPE = "text/x-diff"
MAX_SIDE_CHARS = 20_000
MAX_REPORT_CHARS = 4_000
MAX_LISTED_FILES = 100
MAX_NAMED_FILES = 10
_MARKER = re.compile(rf"^\+(?:<{{7}} {OURS}|>{{7}} {THEIRS})\s*$".encode(), re.MULTILINE)


@dataclass(kw_only=True)
class Integration:
    """The integration branch of one orchestration; `head` is its tip.

    The caller makes sure that there is one merge at a time.
    """

    work: ExecutionContext
    head: PinnedRepository
    spending: TaskSpending

    async def merge(self, child: Task, ended: ExecutionState, subtask_id: str) -> PinnedRepository | str:
        """The branch with the winner of a subtask merged in, or the reason why that failed.

        The caller moves the head after recording it. Raises Fenced; other faults become reasons.
        """
        winner = ended.candidates[ended.winner_id]
        request = MergeRequest(
            execution_id=self.work.task.execution_id,
            head=self.head,
            base=ended.repository,
            patch=await self.work.patch_of(winner),
            since=self.work.repository.shared_commit,
            message=commit_message(child, winner),
            author_name=self.work.task.delivery.author_name,
            author_email=self.work.task.delivery.author_email,
            at=ended.finished_at or ended.updated_at,
        )
        try:
            merge = await self.work.deps.workspaces.merge(request)
            if merge.conflicts:
                return await self._resolved(request, merge, child, subtask_id)
            return await self._at(merge)
        except Fenced:
            raise
        except FleetError as error:
            return f"it could not be merged: {error}"

    async def _resolved(
        self, request: MergeRequest, merge: Merge, child: Task, subtask_id: str
    ) -> PinnedRepository | str:
        """The branch with a conflict resolved by an agent and checked like a candidate, or the reason for failure."""
        where = f"merge conflict in {', '.join(merge.conflicts[:MAX_NAMED_FILES])}"
        granted = self.spending.granted(1)
        if granted is None:
            return f"{where}, and nothing is left to spend on it"
        draft, run = await self._at(merge), merge_run(subtask_id, self.head.commit)
        task = _merge_task(granted, child, merge)
        candidate = await self.work.runs.solve(
            CodingAssignment(execution_id=self.work.task.execution_id, agent_id=run, task=task, repository=draft)
        )
        self.spending.usage += candidate.usage
        if candidate.stop_reason is StopReason.REJECTED:
            return f"{where}: {candidate.error}"
        patch, message = await self.work.patch_of(candidate), f"{request.message.rstrip()}\nFleet-Merge: {run}"
        # Nothing has changed the draft meanwhile, so this cannot conflict again.
        head = await self._at(
            await self.work.deps.workspaces.merge(replace(request, base=draft, patch=patch, message=message))
        )
        if head.commit == self.head.commit:
            return f"{where}: the resolution drops the whole change"
        whole = (await self.work.deps.workspaces.export(head, self.head.commit, THEIRS)).patch
        if _MARKER.search(whole):
            return f"{where}: the resolution leaves conflict markers"
        report = await self.work.runs.check(
            CheckAssignment(
                execution_id=self.work.task.execution_id,
                candidate_id=run,
                task=replace(task, constraints=replace(child.constraints, limits=task.constraints.limits)),
                repository=self.head,
                patch=await self.work.put(whole, PATCH_TYPE),
            )
        )
        if not report.accepted:
            why = "; ".join(result.name for result in report.failed) or "nothing could be checked"
            return f"{where}: the resolution did not pass: {why}"
        return head

    async def _at(self, merge: Merge) -> PinnedRepository:
        """The branch at the merge's commit, with the bundle that other nodes need."""
        if not merge.bundle:
            return self.head
        bundle = await self.work.put(merge.bundle, BUNDLE_TYPE)
        return replace(self.work.repository, commit=merge.commit, bundle=bundle, snapshot_of="")


def spent_on_merges(state: ExecutionState) -> Usage:
    """The usage of merges under earlier drivers."""
    return sum((agent.usage for agent in state.agents.values() if is_merge_run(agent.agent_id)), Usage())


def _merge_task(task: Task, child: Task, merge: Merge) -> Task:
    """The task of the agent that resolves a conflict. The diffs are cut: its clone has both sides in full."""
    conflicts = [f"- {path}" for path in merge.conflicts[:MAX_LISTED_FILES]]
    more = len(merge.conflicts) - MAX_LISTED_FILES
    files = "\n".join([*conflicts, f"- and {more} more"] if more > 0 else conflicts)
    description = (
        "Two changes conflict. Combine them, so that both do what they are for.\n\n"
        f"Your clone has one of them and as much of the other as could be merged. These files conflict:\n{files}"
        f"\n\nBetween `<<<<<<< {OURS}` and `>>>>>>> {THEIRS}` are both sides, with the text before both changes in the "
        "middle. Remove the markers. Where a file has none (it is binary, or one side removed or renamed it), decide "
        f"which side to keep.\nChange nothing else.\n\nThe side `{THEIRS}` is to do this:\n{child.description}"
    )
    context = (
        f"Git's report:\n{beginning(merge.report, MAX_REPORT_CHARS)}\n\n"
        f"What `{OURS}` changed in these files:\n```diff\n{_side(merge.ours)}\n```\n\n"
        f"What `{THEIRS}` changed in them:\n```diff\n{_side(merge.theirs)}\n```"
    )
    constraints = replace(
        child.constraints, limits=task.constraints.limits, totals=task.constraints.totals, rubric="", checks=()
    )
    return replace(
        task, description=description, context=context, role=child.role, constraints=constraints, derive_subtasks=False
    )


def _side(diff: bytes) -> str:
    return truncate(diff.decode("utf-8", "replace"), MAX_SIDE_CHARS) or "(too long to be shown, or binary)"


REFUSED = "refs/fleet/refused"
"""Prefix of the references of best candidates of tasks without a winner."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Delivering:
    """Delivers the result of an execution to its target repository."""

    work: ExecutionContext

    async def deliver(self, winner: Candidate, evidence: CheckReport | None = None) -> CheckReport:
        """Commit the winner and record it; returns the evidence about the delivered commit.

        If its tree is the one that was checked, the candidate's evidence is reused; otherwise the checks run on the
        delivered commit. Raises PatchRejected, PreconditionFailed (the branch is taken or checked out), Unavailable,
        AgentLost.
        """
        task, repository = self.work.task, self.work.repository
        content, delivery = await self.work.patch_of(winner), _delivery(task)
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
            verdict = evidence.verdict if evidence is not None else None
            if evidence is not None and verdict and report.verdict and verdict.rank < report.verdict.rank:
                # The other candidates' tests did not run on this commit: their lower verdict on the candidate counts.
                report = replace(report, verdict=verdict, reasons=evidence.reasons)
        await self.work.journal.append(WinnerDelivered(delivered=delivered, report=report))
        return report

    async def keep_best(self, conclusion: Conclusion) -> None:
        """Keep the best candidate of an execution without a winner as a commit, for people, if it has a change."""
        task, best = self.work.task, conclusion.best
        if self.work.known.refused_kept is not None or best is None:
            return
        report = conclusion.reports.get(best.candidate_id)
        if best.artifacts.patch is None or report is None or not report.tree:
            return  # it cannot be applied, or changes nothing
        delivered = await self.work.deps.workspaces.keep(
            task.execution_id,
            self.work.repository,
            await self.work.patch_of(best),
            f"{REFUSED}/{task.task_id}",
            commit_message(task, best, report),
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
        repository = self.work.repository
        try:
            exported = await self.work.deps.workspaces.export(
                head, repository.commit, delivered.branch, since=repository.shared_commit
            )
        except ResourceExhausted:
            return delivered
        return replace(
            delivered,
            patch=await self.work.put(exported.patch, PATCH_TYPE),
            bundle=await self.work.put(exported.bundle, BUNDLE_TYPE) if exported.bundle else None,
        )


def at_delivered(repository: PinnedRepository, delivered: Delivered) -> PinnedRepository:
    """The delivered commit, with the bundle that other nodes need."""
    if delivered.bundle is None:
        return replace(repository, commit=delivered.commit_sha)
    return replace(repository, commit=delivered.commit_sha, bundle=delivered.bundle, snapshot_of="")


def _delivery(task: Task) -> Delivery:
    return replace(task.delivery, branch=task.delivery.branch or f"fleet/{task.task_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandDelivery:
    """A person's request to deliver a candidate. Without a `branch` it is `fleet/<task>-<candidate>`.

    `by` is the person's name for the log; `caller` is the authenticated name, empty where callers share one token.
    """

    candidate_id: str
    by: str
    caller: str = ""
    reason: str = ""
    branch: str = ""
    push: bool = False


@dataclass(frozen=True, kw_only=True)
class HandDeliveries:
    """Delivers candidates of ended executions; log and commit name the person who asked for it.

    `get` reads an execution's current state.
    """

    log: EventLog
    blobs: BlobStore
    workspaces: Repositories
    get: Callable[[str, str], Awaitable[ExecutionState]]
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def deliver(self, tenant: str, execution_id: str, request: HandDelivery) -> Delivered:
        """Put a candidate on a branch. The same request again changes nothing.

        Raises NotFound (no such candidate), PreconditionFailed (the execution has not ended, the candidate has no
        change, the branch is taken), PermissionDenied (the caller submitted the task, which requires verified
        candidates), PatchRejected, Unavailable.
        """
        async with self._lock:
            state = await self.get(tenant, execution_id)
            candidate = state.candidates.get(request.candidate_id)
            if candidate is None:
                candidate_ids = ", ".join(sorted(state.candidates)) or "none"
                raise NotFound(
                    f"the execution has no candidate {request.candidate_id[:64]!r}",
                    field="candidate_id",
                    hint=f"one of: {candidate_ids}",
                )
            if not state.status.terminal:
                raise PreconditionFailed(
                    "the execution has not ended", field="execution_id", hint="wait until it has ended"
                )
            if candidate.artifacts.patch is None or not candidate.artifacts.patch.size:
                raise PreconditionFailed("the candidate has no changes", field="candidate_id")
            delivery = self._delivery(state, request)
            report = state.reports.get(request.candidate_id)
            _check_overruling(state, report, request)
            trailer = f"Fleet-Delivered-By: {request.by}"
            message = commit_message(state.task, candidate, report).rstrip()
            delivered = await self.workspaces.deliver(
                state.execution_id,
                state.repository,
                await self.blobs.get(candidate.artifacts.patch),
                replace(delivery, message=f"{message}\n{trailer}\n"),
            )
            done = CandidateDelivered(
                candidate_id=request.candidate_id, delivered=delivered, by=request.by, reason=request.reason
            )
            if not any(earlier.delivered == delivered for earlier in state.hand_deliveries):
                await self.log.tell(control(state.task), done)
            return delivered

    def _delivery(self, state: ExecutionState, request: HandDelivery) -> Delivery:
        base = state.task.delivery if state.task.kind is TaskKind.ORCHESTRATE else Delivery()
        branch = request.branch or f"fleet/{state.task.task_id}-{request.candidate_id}"
        check_branch(branch, field="branch")
        return replace(base, branch=branch, push=request.push, message="")


def _check_overruling(state: ExecutionState, report: CheckReport | None, request: HandDelivery) -> None:
    """Refuse that the submitter of a task overrules its evidence. Raises PermissionDenied."""
    verified = report is not None and report.verdict is Verdict.VERIFIED
    if verified or not state.task.constraints.require_verified or request.caller != (state.task.caller or None):
        return
    _log.warning(
        "delivery.refused",
        tenant=state.task.tenant,
        execution_id=state.execution_id,
        candidate_id=request.candidate_id,
        caller=request.caller,
    )
    raise PermissionDenied(
        "the submitter of a task cannot overrule its evidence", field="candidate_id", hint="ask another approver"
    )
