"""An orchestration: a task solved, as a whole or in parts, and delivered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.orchestrator.agent_runs import AgentRuns
from swe_ai_fleet.orchestrator.deliberate import Verdict
from swe_ai_fleet.orchestrator.delivering import Delivering
from swe_ai_fleet.orchestrator.endings import Ending, stands, without_winner
from swe_ai_fleet.orchestrator.subtasks import ChildEnd, SplitTask, SubmitChild
from swe_ai_fleet.ports import BlobStore, Journal, Repositories


@dataclass(frozen=True, kw_only=True)
class Orchestration:
    """One orchestration under way.

    Args:
        task: What is to be done.
        repository: Where it begins.
        runs: Where agents and checks run.
        journal: The execution's own.
        workspaces: Merges and delivers.
        blobs: Has patches and bundles.
        deliberate: Solves the task as a whole.
        submit: Hands in a subtask's task to start from a pinned commit; the same task again is the same execution.
        ended: Waits for the end of an execution.
        known: What an earlier driver left; nothing in it is done again.
    """

    task: Task
    repository: PinnedRepository
    runs: AgentRuns
    journal: Journal
    workspaces: Repositories
    blobs: BlobStore
    deliberate: Callable[[], Awaitable[Verdict]]
    submit: SubmitChild
    ended: ChildEnd
    known: ExecutionState | None = None

    async def run(self) -> Ending:
        """Carry it out to its ending. Raises FleetError for what ends it without one, Fenced."""
        if self.task.derive_subtasks:
            return await SplitTask(
                task=self.task,
                repository=self.repository,
                runs=self.runs,
                journal=self.journal,
                workspaces=self.workspaces,
                blobs=self.blobs,
                submit=self.submit,
                ended=self.ended,
                known=self.known,
            ).run()
        verdict = await self.deliberate()
        winner = verdict.winner
        if winner is None:
            return without_winner(verdict)
        report = self.known.delivery_report if self.known else None
        if report is None:
            delivering = Delivering(workspaces=self.workspaces, blobs=self.blobs, runs=self.runs)
            _, report = await delivering.deliver(self.task, self.repository, winner, self.journal)
        if not stands(report):
            error = "the checks failed on the delivered branch though they had passed on the candidate"
            return Ending(status=ExecutionStatus.FAILED, error=error, usage=verdict.usage)
        return Ending(status=ExecutionStatus.COMPLETED, winner_id=winner.candidate_id, usage=verdict.usage)
