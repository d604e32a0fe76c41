"""`python -m workers.agent`: the main container of a job, which runs its assignment in the clone at `/workspace`.

It runs one assignment as a Ray host runs many: with the same agents, events to JetStream directly, approvals and
checkpoints. Its outcome is on the board before the process ends; a process that ends without one was lost, and another
one continues from its log.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.assignment import CheckAssignment
from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import Fenced, FleetError, InternalFault, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.job import Job, JobOutcome, misfit
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.runtime.agent_worker import open_worker
from swe_ai_fleet.runtime.jobs import JobBoard
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.sandbox import prepare_for_processes
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import configure_logging, open_telemetry
from workers.jobs import FENCED, SETTLED, STOPPED, UNREACHABLE, JobLocation, open_job, outcome_of

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PreparedWorkspaces:
    """`EvidenceWorkspaces` that take every commit from the clone at `path`: this container has no credentials.

    Args:
        provider: Creates clones and environments of it.
        path: The clone.
        in_place: Whether the only agent of this container works in the clone itself; otherwise each workspace is a new
            clone of it (checks need several).
    """

    provider: GitWorkspaceProvider
    path: Path
    in_place: bool

    async def pin(self, tenant: str, repo: RepoRef) -> PinnedRepository:
        """Raises PreconditionFailed: a job has its one commit."""
        raise PreconditionFailed("the container of a job pins nothing", field="repo")

    async def pin_image(self, tenant: str, spec: EnvironmentSpec) -> EnvironmentSpec:
        """Raises PreconditionFailed: the image of a job is already pinned."""
        raise PreconditionFailed("the container of a job pins nothing", field="environment.container_image")

    async def environment(self, repository: PinnedRepository, spec: EnvironmentSpec) -> Environment:
        """The environment of a commit, built in the sandbox. Raises PreconditionFailed."""
        return await self.provider.environment(self._local(repository), spec)

    @asynccontextmanager
    async def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AsyncGenerator[Clone]:
        """The clone itself, or a new clone of it that is removed at the end."""
        local = self._local(repository)
        if self.in_place:
            async with self.provider.attach(name, local, environment, furnished=True) as clone:
                yield clone
        else:
            async with self.provider.open(execution_id, name, local, environment) as clone:
                yield clone

    async def patched(self, execution_id: str, repository: PinnedRepository, patch: bytes) -> PinnedRepository:
        """The commit with a patch applied, in this container. Raises PatchRejected."""
        return await self.provider.patched(execution_id, self._local(repository), patch)

    async def deliver(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, delivery: Delivery
    ) -> Delivered:
        """Raises PreconditionFailed: only orchestrators deliver."""
        raise PreconditionFailed("the container of a job delivers nothing", field="delivery")

    async def release(self, execution_id: str) -> None:
        """Delete the data of an execution."""
        await self.provider.release(execution_id)

    def _local(self, repository: PinnedRepository) -> PinnedRepository:
        return replace(repository, location=str(self.path), credential="", bundle=None, snapshot_of="")


async def run_assignment(settings: Settings, location: JobLocation) -> int:
    """Run a job and write its outcome to the board; returns the exit code."""
    name = os.environ.get("HOSTNAME", "") or f"job-{location.job_id[:12]}"
    async with open_job(settings, location, name=name) as (_, board, job):
        if await board.outcome(job.tenant, job.job_id) is not None:
            return SETTLED
        try:
            if fault := misfit(job):
                hint = "give the runner, FLEET_RUNNER_IMAGE and the orchestrators the same version"
                raise Unavailable(f"the job's image does not fit: {fault}", hint=hint)
            outcome = JobOutcome(value=(await _value(settings, location, board, job, name)).decode())
        except Fenced as fault:
            _log.warning("job.fenced", job=job.job_id, reason=str(fault))
            return FENCED
        except FleetError as fault:
            outcome = outcome_of(fault)
        except Exception as fault:  # noqa: BLE001 - the edge of the process
            _log.exception("job.fault_of_ours", job=job.job_id)
            kind = type(fault).__name__
            outcome = outcome_of(InternalFault(f"internal error ({kind}); see the log"))
        await board.settle(job, outcome)
        _log.info("job.ended", job=job.job_id, kind=job.kind, fault=outcome.fault)
    return SETTLED


async def _value(settings: Settings, location: JobLocation, board: JobBoard, job: Job, name: str) -> bytes:
    assignment = await board.assignment(job)
    repository = assignment.repository
    if repository is not None and not repository.commit:
        pinned = await board.pinned(job)
        if pinned is None:
            raise Unavailable("the repository of this job is not cloned yet", field="repo")
        assignment = replace(assignment, repository=pinned)
    in_place = not isinstance(assignment, CheckAssignment)
    async with (
        open_telemetry(settings, service="fleet-agent-job", serves=False, mask=secret_mask(settings)) as telemetry,
        open_worker(
            settings,
            host=name,
            prepared=lambda provider: PreparedWorkspaces(provider=provider, path=location.workspace, in_place=in_place),
        ) as worker,
    ):
        with telemetry.continuing(assignment.task.traceparent):
            return to_json(await worker.run(assignment))


async def _run_until_signal(settings: Settings, location: JobLocation) -> int:
    """Run the job; a SIGTERM cancels it, which its log records."""
    working = asyncio.create_task(run_assignment(settings, location))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        return await working
    except asyncio.CancelledError:
        return STOPPED


def main() -> int:
    """Run the job named in the environment. Exit codes: see `workers.jobs`; 2: there is no job."""
    prepare_for_processes()
    settings = Settings()
    configure_logging(settings.log_level, settings.log_format, mask=secret_mask(settings))
    try:
        return asyncio.run(_run_until_signal(settings, JobLocation.of()))
    except Unavailable as fault:
        _log.error("job.unreachable", reason=str(fault))
        return UNREACHABLE
    except FleetError as fault:
        _log.error("job.refused", reason=str(fault))
        return 2


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
