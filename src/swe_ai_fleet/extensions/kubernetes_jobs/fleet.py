"""The fleet as jobs: each assignment is published on `agent.jobs.<tenant>.<priority>`; a workspace runner runs it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.codec import from_json, to_json, to_plain
from swe_ai_fleet.domain.assignment import Assignment, CheckAssignment, RecordedAssignment
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.fleet_status import Component, ComponentState, HostStatus, MachineStatus
from swe_ai_fleet.domain.job import Job, JobPriority, job_id, this_release
from swe_ai_fleet.runtime.jobs import JOBS_BUCKET, JOBS_KEPT_SECONDS, MAX_INLINE_BYTES, JobBoard

if TYPE_CHECKING:
    from swe_ai_fleet.runtime.service_deps import AgentFleet

T = TypeVar("T")
_CANCEL_SECONDS = 15.0


def job_of(assignment: Assignment[Any], *, agent_id: str = "", once: str = "") -> Job:
    """The job of an assignment: always the same, unless `once` differs.

    Assignments without a record have no generations; their agent is `agent_id`.
    """
    kind, task, generation = assignment.kind, assignment.task, 1
    if isinstance(assignment, RecordedAssignment):
        agent_id, generation = assignment.agent_id, assignment.generation
    return Job(
        job_id=job_id(task.tenant, assignment.execution_id, str(kind), agent_id, str(generation), once),
        kind=kind,
        tenant=task.tenant,
        task_id=task.task_id,
        execution_id=assignment.execution_id,
        agent_id=agent_id,
        generation=generation,
        errand=to_plain(assignment),
    )


@dataclass(kw_only=True)
class JobFleet:
    """A `Fleet` that submits every assignment as a job and waits for its outcome. Created by `open_job_fleet`.

    As on Ray, an assignment whose container is lost raises AgentLost; its next attempt is another job.
    """

    log: JetStream
    board: JobBoard
    nodes: tuple[MachineStatus, ...] = ()
    unfit: Mapping[str, str] = field(default_factory=dict[str, str])
    running: int = 0
    _started_at: float = field(default_factory=time.time)

    def component(self) -> Component:
        """The status of this executor in place of Ray: the number of submitted jobs."""
        message = f"none: agents run as Kubernetes Jobs, {self.running} submitted"
        return Component(name="ray", state=ComponentState.UP, message=message)

    async def measure(self) -> tuple[HostStatus, ...]:
        """The running jobs as one host, without the usage of containers, which the cluster reports. Raises nothing."""
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
        """Does nothing: containers start with their jobs."""

    async def forget(self, tenant: str, executions: Sequence[str], uploads: Sequence[str], *, whole: bool) -> None:
        """Does nothing: the data of a container ends with its job."""

    async def run(self, assignment: Assignment[T]) -> T:
        """Run an assignment in its own container. Raises AgentLost for a lost container, FleetErrors of the work."""
        job = await self._job(assignment)
        self.running += 1
        try:
            priority = JobPriority.of(assignment.task.priority)
            await self.log.hand_out(job.tenant, priority, job.job_id, to_json(job))
            outcome = await self.board.settled(job.tenant, job.job_id)
        except asyncio.CancelledError:
            # Wait until its processes are gone, unless the runner does not answer.
            with suppress(FleetError, TimeoutError):
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self.board.request_stop(job.tenant, job.job_id)
                    await self.board.settled(job.tenant, job.job_id)
            raise
        finally:
            self.running -= 1
        return from_json(assignment.gives, await self.board.value(outcome))

    async def _job(self, assignment: Assignment[object]) -> Job:
        about = assignment.candidate_id if isinstance(assignment, CheckAssignment) else str(assignment.kind)
        # Each assignment without a record is a new job.
        once = "" if isinstance(assignment, RecordedAssignment) else secrets.token_hex(8)
        job = replace(job_of(assignment, agent_id=about, once=once), release=str(this_release()))
        if len(data := to_json(assignment)) <= MAX_INLINE_BYTES:
            return job
        blob = await self.log.put(job.tenant, job.execution_id, data, "application/json")
        return replace(job, errand={}, blob=blob)


@asynccontextmanager
async def open_job_fleet(log: JetStream) -> AsyncGenerator[AgentFleet]:
    """A fleet whose assignments are jobs. Raises PreconditionFailed, ResourceExhausted, Unavailable."""
    bucket = await log.bucket(JOBS_BUCKET, ttl_seconds=JOBS_KEPT_SECONDS)
    async with JobBoard(bucket, log).watching() as board:
        yield JobFleet(log=log, board=board)
