"""One execution being driven from its acceptance to its published result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import structlog

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.domain.event import (
    ApprovalResolved,
    CancelRequested,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStatus,
    ResultPublished,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import Task, TaskKind
from swe_ai_fleet.orchestrator.agent_runs import PAUSES, AgentRuns
from swe_ai_fleet.orchestrator.approvals import Approvals
from swe_ai_fleet.orchestrator.deliberate import Deliberation, Verdict
from swe_ai_fleet.orchestrator.orchestrate import Delivering
from swe_ai_fleet.orchestrator.results import execution_result
from swe_ai_fleet.ports import BlobStore, ChatModel, EventLog, Fleet, Journal, Repositories, ResultBus

_log = structlog.get_logger()

CANCELLED = "cancelled by a caller"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What every drive of a process works with.

    `owner` is the replica's name; `pauses` are the seconds before each further attempt at a run that was lost.
    """

    log: EventLog
    blobs: BlobStore
    results: ResultBus
    fleet: Fleet
    workspaces: Repositories
    model: ChatModel
    owner: str
    pauses: Sequence[float] = PAUSES


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
        state: The execution as far as is known here; what its log says once it is claimed decides.
    """

    def __init__(self, surroundings: Surroundings, state: ExecutionState) -> None:
        self._with = surroundings
        self._task = state.task
        self._repository = state.repository
        self._generation = state.generation + 1
        self._approvals = Approvals(surroundings.log, state.task)
        self._work: asyncio.Task[Ending] | None = None
        self._cancel_reason = ""

    @property
    def task(self) -> Task:
        return self._task

    def told(self, body: EventBody) -> None:
        """Hear what a caller told the execution, through whichever replica."""
        match body:
            case CancelRequested(reason=reason):
                self._cancel(reason)
            case ApprovalResolved(resolution=resolution):
                self._approvals.decided(resolution)
            case _:
                pass

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
                await journal.append(ExecutionClaimed(generation=self._generation, owner=self._with.owner))
                # Nobody else can write here any more, so this is all that there is to know.
                known = await self._approvals.refresh()
                if not known.status.terminal:
                    await self._finish(journal, known)
                if not known.result_published:
                    await self._publish(journal)
            await self._with.workspaces.release(self._task.execution_id)
        except Fenced:
            log.info("another orchestrator drives the execution")
        except FleetError as error:
            log.error("the execution could not be recorded to its end; it will be taken up again", error=str(error))

    def _cancel(self, reason: str) -> None:
        """Stop the agents and end the execution as cancelled. The first reason stands."""
        self._cancel_reason = self._cancel_reason or reason or CANCELLED
        if self._work is not None:
            self._work.cancel()

    async def _finish(self, journal: Journal, known: ExecutionState) -> None:
        if known.cancel_requested:
            self._cancel(known.cancel_reason)
        ending = await self._ending(journal, known)
        age = datetime.now(UTC) - datetime.fromisoformat(known.started_at)
        await journal.append(
            ExecutionFinished(
                status=ending.status,
                winner_id=ending.winner_id,
                error=ending.error,
                usage=ending.usage,
                duration_ms=max(0, round(age.total_seconds() * 1000)),
            )
        )

    async def _ending(self, journal: Journal, known: ExecutionState) -> Ending:
        """The work in a task of its own, so that a cancellation of the work is not one of the driver."""
        if not self._cancel_reason:
            self._work = asyncio.create_task(self._solve(journal, known))
            try:
                await asyncio.wait([self._work])
            except asyncio.CancelledError:
                self._work.cancel()
                await asyncio.wait([self._work])
                raise
            if not self._work.cancelled():
                return self._judged(self._work)
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

    async def _solve(self, journal: Journal, known: ExecutionState) -> Ending:
        runs = AgentRuns(
            fleet=self._with.fleet,
            journal=journal,
            approvals=self._approvals,
            generation=self._generation,
            known=known,
            pauses=self._with.pauses,
        )
        deliberation = Deliberation(
            task=self._task,
            repository=self._repository,
            runs=runs,
            journal=journal,
            blobs=self._with.blobs,
            known=known,
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
