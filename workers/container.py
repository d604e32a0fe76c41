"""The container of a job: what its environment tells it, and the clone that it works in.

Another container has cloned: the commit of the job lies in `/workspace`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound, PreconditionFailed
from swe_ai_fleet.domain.job import Job
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.runtime.job_board import JobBoard
from swe_ai_fleet.settings import listed

JOB_ID, TENANT, WORKSPACE, GIT_CREDENTIALS, CLONE_FROM, CLONE_HOSTS, LOGIN, IMAGE_PARTS, IMAGE_SOCKET = (
    "FLEET_JOB_ID",
    "FLEET_JOB_TENANT",
    "FLEET_WORKSPACE",
    "FLEET_GIT_CREDENTIALS",
    "FLEET_CLONE_PROTOCOLS",
    "FLEET_CLONE_HOSTS",
    "FLEET_NATS_LOGIN",
    "FLEET_IMAGE_PARTS",
    "FLEET_IMAGE_CONTAINER",
)
DEFAULT_WORKSPACE = "/workspace"
TOLD, FENCED, UNREACHABLE, STOPPED = 0, 76, 69, 143
"""Exit codes: the outcome stands on the board; another process has the run; NATS does not answer; told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which job, where its clone is, and where the container that clones finds credentials.

    `image_parts` is the directory for what the container of the task's image is to see of the fleet.
    """

    job_id: str
    tenant: str
    workspace: Path
    credentials: Path | None = None
    protocols: tuple[str, ...] = ("https", "ssh")
    hosts: tuple[str, ...] = ("*",)
    image_parts: Path | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> Place:
        """What this process was started with. Raises InvalidRequest naming the variable that is missing."""
        given = os.environ if environment is None else environment
        for name in (JOB_ID, TENANT):
            if not given.get(name):
                raise InvalidRequest(f"{name} is not set", field=name, hint="the workspace runner sets it")
        credentials = given.get(GIT_CREDENTIALS, "")
        return cls(
            job_id=given[JOB_ID],
            tenant=given[TENANT],
            workspace=Path(given.get(WORKSPACE) or DEFAULT_WORKSPACE),
            credentials=Path(credentials) if credentials else None,
            protocols=listed(given.get(CLONE_FROM, "")) or ("https", "ssh"),
            hosts=listed(given.get(CLONE_HOSTS, "")) or ("*",),
            image_parts=Path(given[IMAGE_PARTS]) if given.get(IMAGE_PARTS) else None,
        )

    async def job(self, board: JobBoard) -> Job:
        """The job as it stands on the board. Raises NotFound, Unavailable."""
        job_found = await board.job(self.tenant, self.job_id)
        if job_found is None:
            raise NotFound(f"there is no job {self.job_id}", field=JOB_ID)
        return job_found


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
