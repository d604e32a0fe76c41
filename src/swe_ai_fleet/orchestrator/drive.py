"""One execution being driven from its acceptance to its published result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import structlog

from swe_ai_fleet.domain.approval import ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import Fenced, FleetError, PreconditionFailed
from swe_ai_fleet.domain.event import (
    CancelRequested,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStatus,
    ResultPublished,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository, Task, TaskKind
from swe_ai_fleet.orchestrator.agent_runs import AgentRuns
from swe_ai_fleet.orchestrator.approvals import Approvals
from swe_ai_fleet.orchestrator.deliberate import Deliberation, Verdict
from swe_ai_fleet.orchestrator.orchestrate import Delivering
from swe_ai_fleet.orchestrator.results import execution_result
from swe_ai_fleet.ports import BlobStore, ChatModel, EventLog, Fleet, Journal, ResultBus, WorkspaceProvider

_log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What every drive of a process works with."""

    log: EventLog
    blobs: BlobStore
    results: ResultBus
    fleet: Fleet
    workspaces: WorkspaceProvider
    model: ChatModel
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the work on a task ended, to be recorded."""

    status: ExecutionStatus
    winner_id: str = ""
    error: str = ""
    usage: Usage = field(default_factory=Usage)


class Drive:
    """Drives one execution; the single writer of the execution's own subject.

    Args:
        surroundings: What it works with.
        task: What was accepted.
        repository: Where every candidate starts.
        known: The state so far, when an earlier process left the execution unfinished.
        waiting: Hears of each request for approval that is waited for.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        task: Task,
        repository: PinnedRepository,
        known: ExecutionState | None = None,
        *,
        waiting: Callable[[Task, ApprovalRequest], None],
    ) -> None:
        self._with = surroundings
        self._task = task
        self._repository = repository
        self._known = known
        self._generation = known.generation + 1 if known else 1
        self._waiting = waiting
        self._work: asyncio.Task[Ending] | None = None
        self._approvals: asyncio.Future[Approvals] = asyncio.get_running_loop().create_future()
        self._cancel_reason = "cancelled by a caller" if known and known.cancel_requested else ""

    def cancel(self, reason: str) -> None:
        """Stop the agents and end the execution as cancelled. The first reason stands."""
        self._cancel_reason = self._cancel_reason or reason or "cancelled by a caller"
        if self._work is not None:
            self._work.cancel()

    async def resolve(self, resolution: ApprovalResolution) -> None:
        """Write a decision, as soon as the execution's journal is open. Raises as `Approvals.resolve` does."""
        approvals = await asyncio.shield(self._approvals)
        await approvals.resolve(resolution)

    async def run(self) -> None:
        """Drive to the end. Cancelling *this* leaves the execution unfinished in the log, for the next process."""
        log = _log.bind(execution_id=self._task.execution_id, task_id=self._task.task_id)
        writer = Writer(
            tenant=self._task.tenant,
            execution_id=self._task.execution_id,
            task_id=self._task.task_id,
            generation=self._generation,
        )
        try:
            async with self._with.log.journal(writer) as journal:
                if self._known is None or not self._known.status.terminal:
                    await self._finish(journal)
                await self._publish(journal)
            await self._with.workspaces.release(self._task.execution_id)
        except Fenced:
            log.warning("another process took the execution over")
        except FleetError as error:
            log.error("the execution could not be recorded to its end; the next start goes on", error=str(error))
        finally:
            if not self._approvals.done():
                self._approvals.set_exception(PreconditionFailed("the execution is not driven here any more"))
                self._approvals.exception()  # looked at, so that nobody complains where nobody asked

    async def _finish(self, journal: Journal) -> None:
        started_at = time.monotonic() - _age_seconds(self._known)
        await journal.append(ExecutionClaimed(generation=self._generation, owner=self._with.owner))
        ending = await self._ending(journal)
        await journal.append(
            ExecutionFinished(
                status=ending.status,
                winner_id=ending.winner_id,
                error=ending.error,
                usage=ending.usage,
                duration_ms=round((time.monotonic() - started_at) * 1000),
            )
        )

    async def _ending(self, journal: Journal) -> Ending:
        """The work in a task of its own, so that a cancellation of the work is not one of the driver."""
        if not self._cancel_reason:
            self._work = asyncio.create_task(self._solve(journal))
            try:
                await asyncio.wait([self._work])
            except asyncio.CancelledError:
                self._work.cancel()
                await asyncio.wait([self._work])
                raise
            if not self._work.cancelled():
                return self._judged(self._work)
        await journal.append(CancelRequested(reason=self._cancel_reason))
        return Ending(status=ExecutionStatus.CANCELLED, error=self._cancel_reason)

    def _judged(self, work: asyncio.Task[Ending]) -> Ending:
        """The work's ending. A fault of ours ends the execution here, and is logged once; being fenced is passed on."""
        fault = work.exception()
        if fault is None:
            return work.result()
        fault = _innermost(fault)
        if isinstance(fault, Fenced):
            raise fault
        if isinstance(fault, FleetError):
            return Ending(status=ExecutionStatus.FAILED, error=str(fault))
        _log.error("an execution met a fault of ours", execution_id=self._task.execution_id, exc_info=fault)
        return Ending(status=ExecutionStatus.FAILED, error=f"an internal fault ({type(fault).__name__}); see the log")

    async def _solve(self, journal: Journal) -> Ending:
        approvals = Approvals(self._with.log, journal, self._task, told=self._waiting)
        # Everything before this drive's claim is read before anything else is written.
        known = await approvals.refresh() if self._known else None
        self._approvals.set_result(approvals)
        runs = AgentRuns(
            fleet=self._with.fleet,
            journal=journal,
            approvals=approvals,
            generation=self._generation,
            known=known,
        )
        deliberation = Deliberation(
            task=self._task, repository=self._repository, runs=runs, journal=journal, known=known
        )
        verdict = await deliberation.run()
        winner = verdict.winner
        if winner is None:
            return _without_winner(verdict)
        won = Ending(status=ExecutionStatus.COMPLETED, winner_id=winner.candidate_id, usage=verdict.usage)
        if self._task.kind is TaskKind.DELIBERATE:
            return won
        delivering = Delivering(workspaces=self._with.workspaces, blobs=self._with.blobs, fleet=self._with.fleet)
        _, report = await delivering.deliver(self._task, self._repository, winner, journal)
        # Where nothing can be run on the branch there is nothing against it either.
        if any(check.required and not check.skipped_reason and not check.passed for check in report.results):
            error = "the checks failed on the delivered branch though they had passed on the candidate"
            return Ending(status=ExecutionStatus.FAILED, error=error, usage=verdict.usage)
        return won

    async def _publish(self, journal: Journal) -> None:
        await self._with.results.publish(
            tenant=self._task.tenant,
            task_id=self._task.task_id,
            execution_id=self._task.execution_id,
            agent_id="",
            payload=await execution_result(self._with.log, self._with.blobs, self._task),
        )
        await journal.append(ResultPublished())


def _innermost(fault: BaseException) -> BaseException:
    """The first fault inside nested exception groups."""
    while isinstance(fault, BaseExceptionGroup):
        fault = cast("BaseExceptionGroup[BaseException]", fault).exceptions[0]
    return fault


def _without_winner(verdict: Verdict) -> Ending:
    if verdict.rejections and not verdict.candidates and not verdict.losses:
        reasons = "; ".join(dict.fromkeys(verdict.rejections))
        return Ending(status=ExecutionStatus.REJECTED, error=reasons, usage=verdict.usage)
    if not verdict.candidates:
        reasons = "; ".join(dict.fromkeys((*verdict.losses, *verdict.rejections)))
        return Ending(status=ExecutionStatus.FAILED, error=f"no agent handed in a candidate: {reasons}")
    if verdict.timed_out:
        return Ending(status=ExecutionStatus.TIMEOUT, error="the time was up for every agent", usage=verdict.usage)
    best = verdict.ranking[0]
    error = f"no candidate passed; the best, {best.candidate_id}: {best.reason}"
    return Ending(status=ExecutionStatus.NO_WINNER, error=error, usage=verdict.usage)


def _age_seconds(known: ExecutionState | None) -> float:
    if known is None:
        return 0.0
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(known.started_at)).total_seconds())
