"""Runs jobs, each from its message to its outcome: it starts or adopts the job, watches it, and settles it once.

Queues of different priorities share its slots; metrics read its counts.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import structlog
from structlog.contextvars import bound_contextvars

from swe_ai_fleet.adapters.jetstream import PermanentError, RetryAfter, WorkMessage, WorkQueue
from swe_ai_fleet.adapters.jetstream.protocol import JOBS, job_subject
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.errors import (
    AgentLost,
    FleetError,
    InternalFault,
    InvalidRequest,
    PreconditionFailed,
    Unavailable,
)
from swe_ai_fleet.domain.job import Job, JobOutcome, JobPriority, misfit, seconds_of
from swe_ai_fleet.domain.text import check_identifier
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.runtime.jobs import JobBoard
from workers.jobs import Backend, ContainerEnding, JobRef, JobSpec, outcome_of

RANKS = tuple(JobPriority)
"""The priority classes of jobs, the highest first."""
_OUTCOME_SECONDS = 2.0
_OTHER_RELEASE_SECONDS = 3.0
_OTHER_RELEASE_DELIVERIES = 1_200
"""An hour in all: a killed orchestrator no longer cancels its jobs."""
_log = structlog.get_logger(__name__)


@dataclass(kw_only=True)
class Counts:
    """Counters of a runner, which only increase.

    Attributes:
        started: Jobs started, by kind.
        adopted: Jobs already running when this runner took them.
        settled: Jobs that reported their outcome, by kind.
        failed: Jobs that ended without an outcome, by reason.
        wait_seconds: Total time between the arrival of messages and the start of their jobs.
        run_seconds: Total duration of jobs.
    """

    started: Counter[str] = field(default_factory=Counter[str])
    adopted: int = 0
    settled: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    wait_seconds: float = 0.0
    run_seconds: float = 0.0


class Slots:
    """A number of slots; waiting jobs get them by rank (0 first), and within a rank in the order of arrival.

    Args:
        number: The number of jobs that may run at the same time.
        ranks: The number of ranks.
    """

    def __init__(self, number: int, ranks: int) -> None:
        self._number = number
        self._taken = 0
        self._waiting = [0] * ranks
        self._freed = asyncio.Condition()

    @property
    def in_use(self) -> int:
        """The number of jobs with a slot."""
        return self._taken

    @property
    def waiting(self) -> int:
        """The number of jobs waiting for a slot."""
        return sum(self._waiting)

    async def idle(self) -> None:
        """Wait until no job has a slot or waits for one."""
        async with self._freed:
            await self._freed.wait_for(lambda: not self._taken and not self.waiting)

    async def room(self, rank: int) -> int:
        """Wait until a job of a rank would get a slot at once; returns the number of free slots."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._open(rank) and not self._waiting[rank])
            return self._number - self._taken

    @asynccontextmanager
    async def slot(self, rank: int) -> AsyncGenerator[None]:
        """Hold a slot until the context ends."""
        async with self._freed:
            self._waiting[rank] += 1
            try:
                await self._freed.wait_for(lambda: self._open(rank))
            finally:
                self._waiting[rank] -= 1
                self._freed.notify_all()
            self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            # The lock is never held for long: only between two awaits.
            await asyncio.shield(self._notify())

    def _open(self, rank: int) -> bool:
        return self._taken < self._number and not any(self._waiting[:rank])

    async def _notify(self) -> None:
        async with self._freed:
            self._freed.notify_all()


def job_queues(settings: RunnerSettings) -> tuple[WorkQueue, ...]:
    """A queue for each priority class, the highest first; all runners share their consumers."""
    return tuple(
        WorkQueue(
            stream=JOBS,
            subjects=(job_subject("*", priority),),
            consumer=f"workspace-runner-{priority}",
            max_deliveries=settings.max_deliveries,
            ack_wait_seconds=settings.ack_wait_seconds,
            concurrency=settings.concurrency,
        )
        for priority in RANKS
    )


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs jobs on a backend.

    Args:
        board: The board with jobs and outcomes; it must be watched.
        backend: Starts and stops jobs.
        settings: The runner's settings.
        slots: The slots for jobs.
        grants_logins: Whether containers get their own login to NATS.
        counts: The counters for metrics.
    """

    board: JobBoard
    backend: Backend
    settings: RunnerSettings
    slots: Slots
    grants_logins: bool = False
    counts: Counts = field(default_factory=Counts)

    async def handle(self, work: WorkMessage, rank: int) -> None:
        """Handle one message of `agent.jobs.>`. Idempotent. Raises PermanentError for a malformed job."""
        job = _read(work)
        if await self.board.outcome(job.tenant, job.job_id) is not None:
            return
        # A runner of any release can watch a running job, or settle a cancelled one.
        if (fault := misfit(job)) and not (
            await self.board.stop_requested(job.tenant, job.job_id) or await self._is_held(job)
        ):
            if work.deliveries < _OTHER_RELEASE_DELIVERIES:
                # A runner of the other release shares the consumer, or will soon.
                _log.warning("job.left_to_another_release", job=job.job_id, reason=fault)
                raise RetryAfter(_OTHER_RELEASE_SECONDS)
            await self.board.settle(job, outcome_of(AgentLost(f"no runner of its release took it: {fault}")))
            return
        try:
            await self.run_job(job, rank)
        except FleetError as fault:
            if isinstance(fault, Unavailable) or work.deliveries < self.settings.max_deliveries:
                raise
            # The orchestrator that waits for the outcome must learn of a dead letter.
            await self.board.settle(job, outcome_of(fault))
            raise

    async def run_job(self, job: Job, rank: int) -> JobOutcome:
        """Run a job, or adopt a running one; returns its outcome. Raises Unavailable, PreconditionFailed."""
        arrived = time.monotonic()
        async with self.slots.slot(rank):
            began = time.monotonic()
            self.counts.wait_seconds += began - arrived
            try:
                with bound_contextvars(**job.ids):
                    return await self._execute(job)
            finally:
                self.counts.run_seconds += time.monotonic() - began

    def figures(self) -> Mapping[str, float | Mapping[str, int]]:
        """The current figures of this runner for metrics, by name."""
        return {"running": self.slots.in_use, "waiting": self.slots.waiting, **copy.deepcopy(vars(self.counts))}

    async def _is_held(self, job: Job) -> bool:
        return any(other.job_id == job.job_id for other in await self.backend.held())

    async def _execute(self, job: Job) -> JobOutcome:
        if await self.board.stop_requested(job.tenant, job.job_id):
            return await self._settle(job, outcome_of(AgentLost("the job was cancelled")))
        try:
            spec = await self._spec(job)
        except Unavailable:
            raise
        except FleetError as fault:
            return await self._settle(job, outcome_of(fault))
        except ValueError as fault:
            return await self._settle(job, outcome_of(InternalFault(f"no assignment of the fleet: {fault}"[:500])))
        await self.board.post(job)
        await self._stop_earlier_generations(job)
        if self.grants_logins and not await self._is_held(job):
            # An adopted job already has its login.
            spec = replace(spec, login=await self.board.grant_login(job))
        try:
            fresh = await self.backend.start(spec)
        except (InvalidRequest, PreconditionFailed) as fault:
            self.counts.failed["Refused"] += 1
            return await self._settle(job, outcome_of(fault, reason="Refused"))
        self.counts.started[str(job.kind)] += fresh
        self.counts.adopted += not fresh
        _log.info("job.started" if fresh else "job.adopted", job=job.job_id, kind=job.kind, name=spec.ref.name)
        outcome = await self._watch(job, spec.ref)
        if self.grants_logins:
            await self.board.revoke_login(job)
        return outcome

    async def _watch(self, job: Job, ref: JobRef) -> JobOutcome:
        """Wait for the first of: an outcome on the board, the end of the container, a cancellation."""
        reported = asyncio.create_task(self.board.settled(job.tenant, job.job_id))
        ended = asyncio.create_task(self.backend.ended(ref))
        stopped = asyncio.create_task(self.board.stopped(job.tenant, job.job_id))
        tasks = (reported, ended, stopped)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reported.done():
                outcome = reported.result()
            elif stopped.done():
                stopped.result()
                await self.backend.stop(ref)
                return await self._settle(job, outcome_of(AgentLost("the job was cancelled")))
            else:
                outcome = await self._outcome_of(job, ended.result(), reported)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.counts.settled[str(job.kind)] += not outcome.reason
        await self.backend.finish(ref, failed=bool(outcome.fault))
        return outcome

    async def _outcome_of(self, job: Job, ending: ContainerEnding, reported: asyncio.Task[JobOutcome]) -> JobOutcome:
        """The outcome of a job whose container ended: the reported one, which may arrive a bit later, else a fault."""
        await asyncio.wait([reported], timeout=_OUTCOME_SECONDS)
        stored = await self.board.outcome(job.tenant, job.job_id)
        if stored is not None:
            return stored
        self.counts.failed[str(ending.reason)] += 1
        _log.warning(
            "job.lost", job=job.job_id, kind=job.kind, reason=str(ending.reason), message=ending.message, log=ending.log
        )
        return await self._settle(job, outcome_of(ending.fault(), reason=str(ending.reason)))

    async def _settle(self, job: Job, outcome: JobOutcome) -> JobOutcome:
        """Store the outcome of a job; returns the stored one if there already is one."""
        if await self.board.settle(job, outcome):
            return outcome
        return await self.board.outcome(job.tenant, job.job_id) or outcome

    async def _stop_earlier_generations(self, job: Job) -> None:
        """Stop jobs of earlier generations of the same run, which are fenced and can write nothing more."""
        for held in await self.backend.held():
            if held.run_id == job.run_id and held.generation < job.generation and not held.ended:
                await self.backend.stop(held.ref)

    async def _spec(self, job: Job) -> JobSpec:
        assignment = await self.board.assignment(job)
        if (assignment.task.tenant, assignment.execution_id) != (job.tenant, job.execution_id):
            raise InvalidRequest("the job is not of the tenant and the execution of its assignment", field="errand")
        return JobSpec(
            ref=JobRef(name=f"fleet-{job.kind}-{job.job_id}", tenant=job.tenant),
            job_id=job.job_id,
            run_id=job.run_id,
            generation=job.generation,
            kind=str(job.kind),
            task_id=job.task_id,
            execution_id=job.execution_id,
            agent_id=job.agent_id,
            clones=assignment.repository is not None,
            image=assignment.task.environment.image if assignment.repository is not None else "",
            deadline_seconds=seconds_of(assignment) + self.settings.margin_seconds,
        )


def _read(work: WorkMessage) -> Job:
    try:
        job = from_json(Job, work.data)
    except ValueError as fault:
        raise PermanentError(f"the message is not a job: {fault}"[:1000]) from fault
    try:
        for name in ("job_id", "tenant", "task_id", "execution_id"):
            check_identifier(getattr(job, name), field=name)
    except FleetError as fault:
        raise PermanentError(f"{fault.field}: {fault}") from fault
    tokens = work.subject.split(".")
    if len(tokens) != 4 or work.subject != job_subject(job.tenant, tokens[3]):
        raise PermanentError(f"a job of tenant {job.tenant} came in on {work.subject[:200]}")
    return job
