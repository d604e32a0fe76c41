"""The integration branch: winners merged one on top of the other, with the commit messages of the fleet.

Where two winners conflict, an agent merges them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.assignment import CheckAssignment, CodingAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate, CheckReport
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.integration import OURS, THEIRS, Merge, MergeRequest
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.execution_context import ExecutionContext
from swe_ai_fleet.orchestrator.run_names import is_merge_run, merge_run
from swe_ai_fleet.orchestrator.spending import Spending
from swe_ai_fleet.tools.truncation import beginning, truncate

SUBJECT_LENGTH = 72
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n")
_LEAST_WORDS = 3
_MAX_SUMMARY_CHARS = 4_000


def commit_message(task: Task, winner: Candidate, evidence: CheckReport | None = None) -> str:
    """What was done as subject, in the agent's words or the task's, the agent's summary as body, and trailers.

    These lead back to the execution and say the verdict: whoever reads the history sees what nothing was shown of.
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
    # Nothing is said twice.
    body = "" if summary.rstrip(".") == subject else summary
    return "\n\n".join(part for part in (subject, body, "\n".join(trailers)) if part) + "\n"


def _subject(summary: str) -> str:
    """The first sentence of an agent's summary, where it says anything; "Done." does not."""
    first = _SENTENCE_END.split(summary, maxsplit=1)[0].strip("#*-_ `").rstrip(".")
    return first if len(first.split()) >= _LEAST_WORDS else ""


BUNDLE_TYPE = "application/x-git-bundle"
PATCH_TYPE = "text/x-diff"
MAX_SIDE_CHARS = 20_000
MAX_REPORT_CHARS = 4_000
MAX_LISTED_FILES = 100
MAX_NAMED_FILES = 10
_MARKER = re.compile(rf"^\+(?:<{{7}} {OURS}|>{{7}} {THEIRS})\s*$".encode(), re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What became of a winner: the branch with it merged in, or why it could not be (`head` None)."""

    head: PinnedRepository | None
    error: str = ""


@dataclass(kw_only=True)
class Integration:
    """The integration branch of one orchestration. Merges come one at a time; whoever calls sees to that.

    Args:
        work: The whole; its task has the identity of the branch's commits.
        head: Where the branch stands.
        spending: What merging may cost, and has.
    """

    work: ExecutionContext
    head: PinnedRepository
    spending: Spending

    async def merge(self, child: Task, ended: ExecutionState, subtask_id: str) -> Merged:
        """Merge the winner of a subtask that was deliberated; the head moves only once the caller has recorded it.

        Raises Fenced; other faults are the reason why it is not merged.
        """
        winner = ended.candidates[ended.winner_id]
        request = MergeRequest(
            execution_id=self.work.task.execution_id,
            head=self.head,
            base=ended.repository,
            patch=await self._content(winner),
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
            return Merged(head=await self._at(merge))
        except Fenced:
            raise
        except FleetError as error:
            return Merged(head=None, error=f"it could not be merged: {error}")

    async def _resolved(self, request: MergeRequest, merge: Merge, child: Task, subtask_id: str) -> Merged:
        """The branch with a conflict resolved by an agent and checked like a candidate; otherwise why it is not."""
        where = f"merge conflict in {', '.join(merge.conflicts[:MAX_NAMED_FILES])}"
        granted = self.spending.granted(1)
        if granted is None:
            return Merged(head=None, error=f"{where}, and nothing is left to spend on it")
        draft, run = await self._at(merge), merge_run(subtask_id, self.head.commit)
        task = _merge_task(granted, child, merge)
        candidate = await self.work.runs.solve(
            CodingAssignment(execution_id=self.work.task.execution_id, agent_id=run, task=task, repository=draft)
        )
        self.spending.add(candidate.usage)
        if candidate.stop_reason is StopReason.REJECTED:
            return Merged(head=None, error=f"{where}: {candidate.error}")
        patch, message = await self._content(candidate), f"{request.message.rstrip()}\nFleet-Merge: {run}"
        # Neither side has changed the draft meanwhile, so this cannot conflict again.
        head = await self._at(
            await self.work.deps.workspaces.merge(replace(request, base=draft, patch=patch, message=message))
        )
        if head.commit == self.head.commit:
            return Merged(head=None, error=f"{where}: the resolution drops the whole change")
        whole = (await self.work.deps.workspaces.export(head, self.head.commit, THEIRS)).patch
        if _MARKER.search(whole):
            return Merged(head=None, error=f"{where}: the resolution leaves conflict markers")
        report = await self.work.runs.check(
            CheckAssignment(
                execution_id=self.work.task.execution_id,
                candidate_id=run,
                task=replace(task, constraints=replace(child.constraints, limits=task.constraints.limits)),
                repository=self.head,
                patch=await self.work.deps.blobs.put(
                    self.work.task.tenant, self.work.task.execution_id, whole, PATCH_TYPE
                ),
            )
        )
        if not report.accepted:
            failed = "; ".join(
                result.name for result in report.results if not result.passed and not result.skipped_reason
            )
            why = failed or "nothing could be checked"
            return Merged(head=None, error=f"{where}: the resolution did not pass: {why}")
        return Merged(head=head)

    async def _at(self, merge: Merge) -> PinnedRepository:
        """The branch at a commit, for every node."""
        if not merge.bundle:
            return self.head
        bundle = await self.work.deps.blobs.put(
            self.work.task.tenant, self.work.task.execution_id, merge.bundle, BUNDLE_TYPE
        )
        return replace(self.work.repository, commit=merge.commit, bundle=bundle, snapshot_of="")

    async def _content(self, candidate: Candidate) -> bytes:
        patch = candidate.artifacts.patch
        return await self.work.deps.blobs.get(patch) if patch is not None else b""


def spent_on_merges(known: ExecutionState) -> Usage:
    """What an earlier driver's merges have cost."""
    return sum((agent.usage for agent in known.agents.values() if is_merge_run(agent.agent_id)), Usage())


def _merge_task(task: Task, child: Task, merge: Merge) -> Task:
    """What the agent is told. The diffs are cut: the clone has both sides in full."""
    shown = [f"- {path}" for path in merge.conflicts[:MAX_LISTED_FILES]]
    more = len(merge.conflicts) - MAX_LISTED_FILES
    files = "\n".join([*shown, f"- and {more} more"] if more > 0 else shown)
    description = (
        "Two changes conflict. Put them together, so that both do what they are for.\n\n"
        f"Your clone has one of them and as much of the other as could be merged. In these files both meet:\n{files}"
        f"\n\nBetween `<<<<<<< {OURS}` and `>>>>>>> {THEIRS}` stand both sides, what was there before them in the "
        "middle. Take the markers out. Where a file has none (it is binary, or one side removed or renamed it), decide "
        f"which side it is to be.\nChange nothing else.\n\nThe side `{THEIRS}` is to do this:\n{child.description}"
    )
    context = (
        f"What git says of it:\n{beginning(merge.report, MAX_REPORT_CHARS)}\n\n"
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
