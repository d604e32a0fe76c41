"""The repositories of a container that somebody else has cloned into: the commit of its job lies in `/workspace`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.ports import Clone


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
