"""Repositories that do what they are told, without git."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.ports import Clone, Exported, Merge, MergeRequest

DELIVERED_COMMIT = "d" * 40
DRAFT = "draft"
"""How commits of unfinished merges begin."""


@dataclass(kw_only=True)
class ScriptedWorkspaces:
    """`Repositories` that pin whatever they are given and deliver onto one commit; merges are lists of patches.

    Args:
        faults: Raised when a repository with this ref is pinned.
        delivery_fault: Raised instead of a delivery.
        conflicts: The files in which a patch conflicts with whatever was merged before it.
    """

    faults: Mapping[str, FleetError] = field(default_factory=dict[str, FleetError])
    delivery_fault: FleetError | None = None
    conflicts: Mapping[bytes, tuple[str, ...]] = field(default_factory=dict[bytes, tuple[str, ...]])
    merges: list[MergeRequest] = field(default_factory=list[MergeRequest])
    merged: dict[str, tuple[bytes, ...]] = field(default_factory=dict[str, tuple[bytes, ...]])
    branches: dict[str, str] = field(default_factory=dict[str, str])
    deliveries: list[tuple[str, bytes, Delivery]] = field(default_factory=list[tuple[str, bytes, Delivery]])
    kept: dict[str, bytes] = field(default_factory=dict[str, bytes])
    released: list[str] = field(default_factory=list[str])

    async def pin(self, tenant: str, repo: RepoRef) -> PinnedRepository:
        """A made-up commit, always the same for the same repository and ref."""
        if repo.ref in self.faults:
            raise self.faults[repo.ref]
        commit = repo.commit or hashlib.sha1(f"{repo.location}@{repo.ref}".encode(), usedforsecurity=False).hexdigest()
        return PinnedRepository(
            tenant=tenant, location=repo.location, commit=commit, branch=repo.ref, subdirectory=repo.subdirectory
        )

    async def pin_image(self, tenant: str, spec: EnvironmentSpec) -> EnvironmentSpec:
        return spec

    async def environment(self, repository: PinnedRepository, spec: EnvironmentSpec) -> Environment:
        """The bare environment with the variables that were asked for."""
        return Environment(variables=dict(spec.variables), path=spec.path)

    def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AbstractAsyncContextManager[Clone]:
        """There is nothing to clone: entering raises PreconditionFailed."""
        return _nothing_to_clone()

    async def deliver(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, delivery: Delivery
    ) -> Delivered:
        """Remember the delivery. Doing it again changes nothing."""
        if self.delivery_fault is not None:
            raise self.delivery_fault
        made = (execution_id, patch, delivery)
        if made not in self.deliveries:
            self.deliveries.append(made)
        return Delivered(commit_sha=DELIVERED_COMMIT, branch=delivery.branch, pushed=delivery.push)

    async def merge(self, request: MergeRequest) -> Merge:
        """A commit named after the patches that lead to it. Doing it again makes the same one."""
        self.merges.append(request)
        before = self.merged.get(request.head.commit, ())
        # A draft has the patch that it is a draft of at its end.
        unfinished = self.merged.get(request.base.commit, ())[len(before) :] if request.base != request.head else ()
        drafted = unfinished if request.base.commit.startswith(DRAFT) else ()
        if (not request.patch and not drafted) or request.patch in before:
            return Merge(commit=request.head.commit, bundle=b"")
        patches = (*before, *drafted, request.patch)
        files = self.conflicts.get(request.patch, ()) if before and not drafted else ()
        digest = hashlib.sha1(b"\0".join((request.since.encode(), *patches)), usedforsecurity=False).hexdigest()
        commit = f"{DRAFT}{digest}"[:40] if files else digest
        self.merged[commit] = patches
        report = f"CONFLICT in {', '.join(files)}" if files else ""
        return Merge(commit=commit, bundle=f"bundle of {commit}".encode(), conflicts=files, report=report)

    async def publish(
        self, execution_id: str, repository: PinnedRepository, since: str, delivery: Delivery
    ) -> Delivered:
        """Remember where the branch stands. Doing it again changes nothing."""
        if self.delivery_fault is not None:
            raise self.delivery_fault
        if self.branches.setdefault(delivery.branch, repository.commit) != repository.commit:
            raise PreconditionFailed(f"branch {delivery.branch} exists with different content", field="delivery.branch")
        return Delivered(commit_sha=repository.commit, branch=delivery.branch, pushed=delivery.push)

    async def keep(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, ref: str, message: str
    ) -> Delivered:
        """Remember what is kept under the reference."""
        self.kept[ref] = patch
        return Delivered(commit_sha=DELIVERED_COMMIT, branch=ref)

    async def export(self, repository: PinnedRepository, base: str, branch: str, *, since: str = "") -> Exported:
        """The patches that lead to a commit from a base."""
        patches = self.merged.get(repository.commit, ())[len(self.merged.get(base, ())) :]
        return Exported(patch=b"".join(patches), bundle=f"bundle of {repository.commit}".encode())

    async def release(self, execution_id: str) -> None:
        """Remember that the execution is over."""
        self.released.append(execution_id)


@asynccontextmanager
async def _nothing_to_clone() -> AsyncGenerator[Clone, None]:
    raise PreconditionFailed("these repositories exist in name only")
    yield
