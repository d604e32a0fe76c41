"""`python -m workers.cloning`: the first container of a job, which clones the pinned commit into `/workspace`.

Only this container has the git credentials. The clone has that commit's history and no remote.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import structlog

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, mounted_credentials
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.errors import Fenced, FleetError, Unavailable
from swe_ai_fleet.domain.job import Job
from swe_ai_fleet.domain.task import PinnedRepository
from swe_ai_fleet.runtime.factories import git_private_hosts, repository_roots
from swe_ai_fleet.runtime.jobs import JobBoard
from swe_ai_fleet.runtime.tool_services import make_sandbox, secret_mask
from swe_ai_fleet.sandbox.images import carry
from swe_ai_fleet.sandbox.jail import shell
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import configure_logging
from workers.jobs import SETTLED, UNREACHABLE, JobLocation, open_job, outcome_of

_log = structlog.get_logger(__name__)


async def clone(settings: Settings, location: JobLocation) -> int:
    """Clone a job's repository; returns the exit code. A refused repository becomes the job's outcome."""
    async with open_job(settings, location, name=f"clone-{location.job_id[:12]}") as (log, board, job):
        try:
            await _clone(settings, location, log, board, job)
        except Unavailable:
            # Another container may be able to reach it.
            raise
        except FleetError as fault:
            _log.error("cloning.refused", reason=str(fault))
            await board.settle(job, outcome_of(fault))
            return 1
    return SETTLED


async def _clone(settings: Settings, location: JobLocation, log: JetStream, board: JobBoard, job: Job) -> None:
    assignment = await board.assignment(job)
    repository = assignment.repository
    if repository is None:
        return
    provider = GitWorkspaceProvider(
        settings.home,
        make_sandbox(settings),
        allowed_roots=repository_roots(settings),
        allow_local_paths=settings.loopback and "file" in location.protocols,
        protocols=tuple(name for name in location.protocols if name != "file"),
        hosts=(*location.hosts, *git_private_hosts(settings)),
        known_hosts=settings.git_known_hosts
        or (location.credentials / "known_hosts" if location.credentials else None),
        credentials=mounted_credentials(location.credentials, hosts=location.hosts) if location.credentials else None,
        mask=secret_mask(settings),
        fetch=log.get,
    )
    if not repository.commit:
        repository = await _resolved(provider, board, job, repository)
    location.workspace.mkdir(parents=True, exist_ok=True)
    await provider.copy_into(repository, location.workspace)
    if location.image_parts is not None:
        await asyncio.to_thread(carry, shell(), location.image_parts)
    _log.info("cloning.done", commit=repository.commit, job=job.job_id)


async def _resolved(
    provider: GitWorkspaceProvider, board: JobBoard, job: Job, wanted: PinnedRepository
) -> PinnedRepository:
    """The commit found by the first container of this run, so that later ones continue from the same."""
    if (pinned := await board.pinned(job)) is not None:
        return pinned
    assignment = await board.assignment(job)
    pinned = await provider.pin(wanted.tenant, assignment.task.repo)
    await board.pin(job, pinned)
    return pinned


def main() -> int:
    """Clone for the job named in the environment. Exit codes: see `workers.jobs`; 1: the repository was refused."""
    settings = Settings()
    configure_logging(settings.log_level, settings.log_format, mask=secret_mask(settings))
    try:
        return asyncio.run(clone(settings, JobLocation.of()))
    except (Unavailable, Fenced) as fault:
        _log.error("cloning.failed", reason=str(fault))
        return UNREACHABLE
    except FleetError as fault:
        _log.error("cloning.refused", reason=str(fault))
        return 2


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
