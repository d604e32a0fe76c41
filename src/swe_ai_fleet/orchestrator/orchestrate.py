"""An orchestration: a task solved, as a whole or in parts, and delivered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.orchestrator.deliberate import Conclusion
from swe_ai_fleet.orchestrator.delivering import Delivering
from swe_ai_fleet.orchestrator.endings import Ending, stands, without_winner
from swe_ai_fleet.orchestrator.subtasks import SplitTask
from swe_ai_fleet.orchestrator.underway import Underway


@dataclass(frozen=True, kw_only=True)
class Orchestration:
    """One orchestration under way.

    Args:
        work: What is to be done.
        deliberate: Solves the task as a whole.
    """

    work: Underway
    deliberate: Callable[[], Awaitable[Conclusion]]

    async def run(self) -> Ending:
        """Carry it out to its ending. Raises FleetError for what ends it without one, Fenced."""
        if self.work.task.derive_subtasks:
            return await SplitTask(work=self.work).run()
        verdict = await self.deliberate()
        winner = verdict.winner
        if winner is None:
            await Delivering(work=self.work).keep_best(verdict)
            return without_winner(verdict)
        report = self.work.known.delivery_report
        if report is None:
            report = await Delivering(work=self.work).deliver(winner, verdict.reports.get(winner.candidate_id))
        if not stands(report):
            error = "the checks failed on the delivered branch though they had passed on the candidate"
            return Ending(status=ExecutionStatus.FAILED, error=error, usage=verdict.usage)
        return Ending(status=ExecutionStatus.COMPLETED, winner_id=winner.candidate_id, usage=verdict.usage)
