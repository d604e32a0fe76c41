"""The runner of jobs, each from its message to its outcome: started or adopted, watched, and told of once.

Queues of different priority share its room, and exporters of metrics read its counts.
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
"""The classes of jobs, those that go first at the front."""
_OUTCOME_SECONDS = 2.0
_ELSEWHERE_SECONDS = 3.0
_ELSEWHERE_TIMES = 1_200
"""An hour: an orchestrator that was killed no longer calls off what it handed out."""
_log = structlog.get_logger(__name__)


@dataclass(kw_only=True)
class Counts:
    """Grows only.

    Attributes:
        started: Jobs begun, by kind.
        adopted: Jobs that were running already when this runner came to them.
        settled: Jobs that told their outcome, by kind.
        failed: Jobs that ended without a word, by reason.
        wait_seconds: Time between a message's arrival here and its job's start, added up.
        run_seconds: Time that jobs took, added up.
    """

    started: Counter[str] = field(default_factory=Counter[str])
    adopted: int = 0
    settled: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    wait_seconds: float = 0.0
    run_seconds: float = 0.0


class Slots:
    """A number of slots; of those who wait, the ones of the highest rank (0) go first, in the order they came.

    Args:
        number: How many jobs may run at a time.
        ranks: How many classes there are.
    """

    def __init__(self, number: int, ranks: int) -> None:
        self._number = number
        self._taken = 0
        self._waiting = [0] * ranks
        self._freed = asyncio.Condition()

    @property
    def in_use(self) -> int:
        """Jobs that have a slot."""
        return self._taken

    @property
    def waiting(self) -> int:
        """Jobs that wait for one here."""
        return sum(self._waiting)

    async def idle(self) -> None:
        """Wait until nobody has a slot, and nobody waits for one."""
        async with self._freed:
            await self._freed.wait_for(lambda: not self._taken and not self.waiting)

    async def room(self, rank: int) -> int:
        """Wait until a job of a rank would get a slot at once; for how many there is room."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._open(rank) and not self._waiting[rank])
            return self._number - self._taken

    @asynccontextmanager
    async def slot(self, rank: int) -> AsyncGenerator[None]:
        """A slot for as long as the context lasts."""
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
            # Nobody waits for the lock long: it is held between two awaits only.
            await asyncio.shield(self._notify())

    def _open(self, rank: int) -> bool:
        return self._taken < self._number and not any(self._waiting[:rank])

    async def _notify(self) -> None:
        async with self._freed:
            self._freed.notify_all()


def job_queues(settings: RunnerSettings) -> tuple[WorkQueue, ...]:
    """A queue for each class of jobs, the highest first; all runners share their consumers."""
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
    """Carries jobs out on a backend.

    Args:
        board: Where jobs and outcomes stand; it must be watched.
        backend: Where they run.
        settings: The runner's.
        slots: The room for jobs.
        lets_in: Whether containers get a login to NATS of their own.
        counts: What is told of all this.
    """

    board: JobBoard
    backend: Backend
    settings: RunnerSettings
    slots: Slots
    lets_in: bool = False
    counts: Counts = field(default_factory=Counts)

    async def handle(self, work: WorkMessage, rank: int) -> None:
        """One message of `agent.jobs.>`. Idempotent. Raises PermanentError for what is no job."""
        job = _read(work)
        if await self.board.outcome(job.tenant, job.job_id) is not None:
            return
        # To watch a job to its end, or to call it off, any release will do.
        if (fault := misfit(job)) and not (
            await self.board.stop_requested(job.tenant, job.job_id) or await self._is_held(job)
        ):
            if work.deliveries < _ELSEWHERE_TIMES:
                # A runner of the other release shares the consumer, or will.
                _log.warning("job.left_to_another_release", job=job.job_id, reason=fault)
                raise RetryAfter(_ELSEWHERE_SECONDS)
            await self.board.settle(job, outcome_of(AgentLost(f"no runner of its release took it: {fault}")))
            return
        try:
            await self.run_job(job, rank)
        except FleetError as fault:
            if isinstance(fault, Unavailable) or work.deliveries < self.settings.max_deliveries:
                raise
            # Whoever waits for the outcome must hear of what becomes a dead letter.
            await self.board.settle(job, outcome_of(fault))
            raise

    async def run_job(self, job: Job, rank: int) -> JobOutcome:
        """How a job ended; it is started unless it is running already. Raises Unavailable, PreconditionFailed."""
        arrived = time.monotonic()
        async with self.slots.slot(rank):
            began = time.monotonic()
            self.counts.wait_seconds += began - arrived
            try:
                with bound_contextvars(**job.ids):
                    return await self._executed(job)
            finally:
                self.counts.run_seconds += time.monotonic() - began

    def figures(self) -> Mapping[str, float | Mapping[str, int]]:
        """What a metrics exporter tells of this runner at this moment, by name."""
        return {"running": self.slots.in_use, "waiting": self.slots.waiting, **copy.deepcopy(vars(self.counts))}

    async def _is_held(self, job: Job) -> bool:
        return any(other.job_id == job.job_id for other in await self.backend.held())

    async def _executed(self, job: Job) -> JobOutcome:
        if await self.board.stop_requested(job.tenant, job.job_id):
            return await self._settled(job, outcome_of(AgentLost("the job was called off")))
        try:
            spec = await self._spec(job)
        except Unavailable:
            raise
        except FleetError as fault:
            return await self._settled(job, outcome_of(fault))
        except ValueError as fault:
            return await self._settled(job, outcome_of(InternalFault(f"no assignment of the fleet: {fault}"[:500])))
        await self.board.post(job)
        await self._retire(job)
        if self.lets_in and not await self._is_held(job):
            # What is adopted has its login already.
            spec = replace(spec, login=await self.board.grant_login(job))
        try:
            fresh = await self.backend.start(spec)
        except (InvalidRequest, PreconditionFailed) as fault:
            self.counts.failed["Refused"] += 1
            return await self._settled(job, outcome_of(fault, reason="Refused"))
        self.counts.started[str(job.kind)] += fresh
        self.counts.adopted += not fresh
        _log.info("job.started" if fresh else "job.adopted", job=job.job_id, kind=job.kind, name=spec.ref.name)
        outcome = await self._watched(job, spec.ref)
        if self.lets_in:
            await self.board.revoke_login(job)
        return outcome

    async def _watched(self, job: Job, ref: JobRef) -> JobOutcome:
        """Wait for whichever comes first: a word on the board, the end of the container, or that it is called off."""
        outcome_told = asyncio.create_task(self.board.settled(job.tenant, job.job_id))
        ended = asyncio.create_task(self.backend.ended(ref))
        stopped = asyncio.create_task(self.board.stopped(job.tenant, job.job_id))
        tasks = (outcome_told, ended, stopped)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if outcome_told.done():
                outcome = outcome_told.result()
            elif stopped.done():
                stopped.result()
                await self.backend.stop(ref)
                return await self._settled(job, outcome_of(AgentLost("the job was called off")))
            else:
                outcome = await self._outcome_of(job, ended.result(), outcome_told)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.counts.settled[str(job.kind)] += not outcome.reason
        await self.backend.finish(ref, failed=bool(outcome.fault))
        return outcome

    async def _outcome_of(
        self, job: Job, ending: ContainerEnding, outcome_told: asyncio.Task[JobOutcome]
    ) -> JobOutcome:
        """What a job said before its container ended, which may be heard of a moment later; else what that means."""
        await asyncio.wait([outcome_told], timeout=_OUTCOME_SECONDS)
        known_outcome = await self.board.outcome(job.tenant, job.job_id)
        if known_outcome is not None:
            return known_outcome
        self.counts.failed[str(ending.reason)] += 1
        _log.warning(
            "job.lost", job=job.job_id, kind=job.kind, reason=str(ending.reason), message=ending.message, log=ending.log
        )
        return await self._settled(job, outcome_of(ending.fault(), reason=str(ending.reason)))

    async def _settled(self, job: Job, outcome: JobOutcome) -> JobOutcome:
        """Store how a job ended; what stands there already counts."""
        if await self.board.settle(job, outcome):
            return outcome
        return await self.board.outcome(job.tenant, job.job_id) or outcome

    async def _retire(self, job: Job) -> None:
        """End what carries out an earlier generation of the same run: it could write nothing more."""
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
