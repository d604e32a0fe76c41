"""The fleet as jobs: each assignment goes to `agent.jobs.<tenant>.<priority>`; a workspace runner carries it out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.assignment import Assignment, CheckAssignment, RecordedAssignment
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.fleet_status import HostStatus, NodeStatus
from swe_ai_fleet.domain.job import Job, JobPriority, this_release
from swe_ai_fleet.runtime.job_board import JOBS_BUCKET, JOBS_KEPT_SECONDS, MAX_INLINE_BYTES, JobBoard, job_of

T = TypeVar("T")
_CANCEL_SECONDS = 15.0


@dataclass(kw_only=True)
class JobFleet:
    """Hands every assignment of the `Fleet` port out as a job and waits for its outcome. Made by `open_job_fleet`.

    An assignment whose container is lost raises AgentLost, as one on Ray does; its next attempt is another job.
    """

    nodes: ClassVar[tuple[NodeStatus, ...]] = ()
    unfit: ClassVar[Mapping[str, str]] = {}

    log: JetStream
    board: JobBoard
    _running: set[str] = field(default_factory=set[str])
    _started_at: float = field(default_factory=time.time)

    @property
    def running(self) -> int:
        """How many assignments have been sent whose outcomes have not come back."""
        return len(self._running)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The jobs they are."""
        return tuple(sorted(self._running))

    async def measure(self) -> tuple[HostStatus, ...]:
        """The jobs under way as one host: what containers use, their cluster knows. Raises nothing."""
        return (
            HostStatus(
                host_id="jobs",
                running=self.running,
                slots=0,
                started_at=self._started_at,
                alive=True,
                report=None,
            ),
        )

    async def warm(self) -> None:
        """There is nothing to warm: containers start with their jobs."""

    async def run(self, assignment: Assignment[T]) -> T:
        """One assignment in a container of its own. Raises AgentLost where that is lost, FleetErrors of the work."""
        job = await self._job(assignment)
        name = f"{job.kind}-{job.job_id[:12]}"
        self._running.add(name)
        try:
            priority = JobPriority.of(assignment.task.priority)
            await self.log.hand_out(job.tenant, priority, job.job_id, to_json(job))
            outcome = await self.board.settled(job.tenant, job.job_id)
        except asyncio.CancelledError:
            # Who cancels it waits for its processes to be gone; a runner that does not answer is not waited for.
            with suppress(FleetError, TimeoutError):
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self.board.call_off(job.tenant, job.job_id)
                    await self.board.settled(job.tenant, job.job_id)
            raise
        finally:
            self._running.discard(name)
        return from_json(assignment.gives, await self.board.value(outcome))

    async def _job(self, assignment: Assignment[object]) -> Job:
        about = assignment.candidate_id if isinstance(assignment, CheckAssignment) else str(assignment.kind)
        # Each gathering of evidence is a job of its own.
        once = "" if isinstance(assignment, RecordedAssignment) else secrets.token_hex(8)
        job = replace(job_of(assignment, agent_id=about, once=once), release=str(this_release()))
        if len(data := to_json(assignment)) <= MAX_INLINE_BYTES:
            return job
        blob = await self.log.put(job.tenant, job.execution_id, data, "application/json")
        return replace(job, errand={}, blob=blob)


@asynccontextmanager
async def open_job_fleet(log: JetStream) -> AsyncGenerator[JobFleet]:
    """A fleet whose assignments are jobs. Raises PreconditionFailed, ResourceExhausted, Unavailable."""
    bucket = await log.bucket(JOBS_BUCKET, ttl_seconds=JOBS_KEPT_SECONDS)
    async with JobBoard(bucket, log).watching() as board:
        yield JobFleet(log=log, board=board)
