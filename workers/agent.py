"""`python -m workers.agent`: the container of a job, which carries its assignment out in the clone at `/workspace`.

It does for one assignment what a Ray host does for many: the same agents, events to JetStream directly, approvals,
checkpoints. Its outcome is on the board before the process ends; a process that ends without one was lost, and another
one goes on from its log.
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
    """`EvidenceWorkspaces` that take every commit from the clone at `path`: nothing here has a credential.

    Args:
        provider: Makes clones and environments of it.
        path: The clone.
        alone: Whether the one agent of this container works in the clone itself; otherwise each workspace is a clean
            clone of it (checks need several).
    """

    provider: GitWorkspaceProvider
    path: Path
    alone: bool

    async def pin(self, tenant: str, repo: RepoRef) -> PinnedRepository:
        """A container has its one commit. Raises PreconditionFailed."""
        raise PreconditionFailed("the container of a job pins nothing", field="repo")

    async def pin_image(self, tenant: str, spec: EnvironmentSpec) -> EnvironmentSpec:
        """What a job is given is pinned. Raises PreconditionFailed."""
        raise PreconditionFailed("the container of a job pins nothing", field="environment.container_image")

    async def environment(self, repository: PinnedRepository, spec: EnvironmentSpec) -> Environment:
        """The environment for it, built in the sandbox. Raises PreconditionFailed."""
        return await self.provider.environment(self._here(repository), spec)

    @asynccontextmanager
    async def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AsyncGenerator[Clone]:
        """The clone itself, or a clean one of it that is gone at the end."""
        here = self._here(repository)
        if self.alone:
            async with self.provider.attach(name, here, environment, furnished=True) as clone:
                yield clone
        else:
            async with self.provider.open(execution_id, name, here, environment) as clone:
                yield clone

    async def patched(self, execution_id: str, repository: PinnedRepository, patch: bytes) -> PinnedRepository:
        """A commit with a patch, in this container. Raises PatchRejected."""
        return await self.provider.patched(execution_id, self._here(repository), patch)

    async def deliver(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, delivery: Delivery
    ) -> Delivered:
        """Orchestrators deliver. Raises PreconditionFailed."""
        raise PreconditionFailed("the container of a job delivers nothing", field="delivery")

    async def release(self, execution_id: str) -> None:
        """Forget what was kept for an execution."""
        await self.provider.release(execution_id)

    def _here(self, repository: PinnedRepository) -> PinnedRepository:
        return replace(repository, location=str(self.path), credential="", bundle=None, snapshot_of="")


async def run_assignment(settings: Settings, place: JobLocation) -> int:
    """Carry out the job of a place and tell the board how it ended; the exit code."""
    name = os.environ.get("HOSTNAME", "") or f"job-{place.job_id[:12]}"
    async with open_job(settings, place, name=name) as (_, board, job):
        if await board.outcome(job.tenant, job.job_id) is not None:
            return SETTLED
        try:
            if fault := misfit(job):
                hint = "give the runner, FLEET_RUNNER_IMAGE and the orchestrators the same version"
                raise Unavailable(f"the job's image does not fit: {fault}", hint=hint)
            outcome = JobOutcome(value=(await _value(settings, place, board, job, name)).decode())
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


async def _value(settings: Settings, place: JobLocation, board: JobBoard, job: Job, name: str) -> bytes:
    assignment = await board.assignment(job)
    repository = assignment.repository
    if repository is not None and not repository.commit:
        pinned = await board.pinned(job)
        if pinned is None:
            raise Unavailable("nobody has cloned for this job", field="repo")
        assignment = replace(assignment, repository=pinned)
    alone = not isinstance(assignment, CheckAssignment)
    async with (
        open_telemetry(settings, service="fleet-agent-job", serves=False, mask=secret_mask(settings)) as telemetry,
        open_worker(
            settings,
            host=name,
            prepared=lambda provider: PreparedWorkspaces(provider=provider, path=place.workspace, alone=alone),
        ) as worker,
    ):
        with telemetry.continuing(assignment.task.traceparent):
            return to_json(await worker.run(assignment))


async def _until_told(settings: Settings, place: JobLocation) -> int:
    """Carry out the job; a SIGTERM cancels it, which its log records."""
    working = asyncio.create_task(run_assignment(settings, place))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        return await working
    except asyncio.CancelledError:
        return STOPPED


def main() -> int:
    """Carry out the job that the environment names. Exit codes: see `workers.jobs`; 2: there is none."""
    prepare_for_processes()
    settings = Settings()
    configure_logging(settings.log_level, settings.log_format, mask=secret_mask(settings))
    try:
        return asyncio.run(_until_told(settings, JobLocation.of()))
    except Unavailable as fault:
        _log.error("job.unreachable", reason=str(fault))
        return UNREACHABLE
    except FleetError as fault:
        _log.error("job.refused", reason=str(fault))
        return 2


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
