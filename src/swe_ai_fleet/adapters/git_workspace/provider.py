"""The repositories of one node: `ports.WorkspaceProvider` on git and the sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from swe_ai_fleet.adapters.git_workspace.clone import CloneBounds, GitClone
from swe_ai_fleet.adapters.git_workspace.clones import Clones
from swe_ai_fleet.adapters.git_workspace.delivery import Deliveries
from swe_ai_fleet.adapters.git_workspace.directories import vanishing
from swe_ai_fleet.adapters.git_workspace.disk_space import Ages, RemovedCounts, TenantDisk, forget, reap, release
from swe_ai_fleet.adapters.git_workspace.environments import Environments
from swe_ai_fleet.adapters.git_workspace.furnishing import Furnishing
from swe_ai_fleet.adapters.git_workspace.git import Git, GitLayout
from swe_ai_fleet.adapters.git_workspace.git_dirs import WORK_BRANCH
from swe_ai_fleet.adapters.git_workspace.image_store import ImageRules, ImageStore
from swe_ai_fleet.adapters.git_workspace.local import LocalRepositories, user_excludes
from swe_ai_fleet.adapters.git_workspace.locations import LocationPolicy, Remote, RemoteRoutes
from swe_ai_fleet.adapters.git_workspace.origins import BlobFetch, Origins
from swe_ai_fleet.adapters.git_workspace.remote import CredentialLookup, RemoteRepositories
from swe_ai_fleet.adapters.git_workspace.setup import PythonTools, SetupPolicy
from swe_ai_fleet.adapters.git_workspace.uploads import UploadedRepositories
from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import UPLOAD, Delivery, EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.domain.text import check_branch, check_identifier
from swe_ai_fleet.ports import Exported, KnownRecipes, Merge, MergeRequest, SecretMask
from swe_ai_fleet.sandbox import NetworkGrant, Sandbox
from swe_ai_fleet.sandbox.network import Resolver
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted


class GitWorkspaceProvider:
    """Pins repositories, opens clones of them in the sandbox, builds their environments, delivers patches.

    All files are below `home`, which several processes may share. Local paths are accepted only with
    `allow_local_paths`, below `allowed_roots` (where `{tenant}` stands for the caller's) and never below `home`; URLs
    only with one of `protocols` and a host that matches `hosts` (see `RemoteHosts`). They are reached at checked
    addresses (`resolver`, None: the system's), over ssh only with a key and for servers in `known_hosts` (None: the
    file of that name in `home`). `credentials` finds the credential of a URL. `setup` is the network of set-up
    commands; by default every public host. `mask` hides secrets in quoted output. A diff or checkpoint larger than
    `bounds` is an error. `fetch` gets the bundles of commits that a location lacks; without it those are only available
    on the node that made them. `recipes` has the results of environment runs, `images` the allowed sources of container
    images (None: none). `environ` is this process's environment (None: the real one).
    """

    def __init__(
        self,
        home: Path,
        sandbox: Sandbox,
        *,
        allowed_roots: tuple[Path, ...] = (),
        allow_local_paths: bool = False,
        protocols: tuple[str, ...] = ("https", "ssh"),
        hosts: tuple[str, ...] = ("*",),
        credentials: CredentialLookup | None = None,
        known_hosts: Path | None = None,
        resolver: Resolver | None = None,
        setup: SetupPolicy | None = None,
        mask: SecretMask | None = None,
        ages: Ages | None = None,
        bounds: CloneBounds | None = None,
        fetch: BlobFetch | None = None,
        recipes: KnownRecipes | None = None,
        images: ImageRules | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._home = home.resolve()
        self._scratch = scratch = self._home / "scratch"
        for directory in (scratch, self._home / "repositories"):
            directory.mkdir(parents=True, exist_ok=True)
        self._ages = ages or Ages()
        self._policy = LocationPolicy(
            allowed_roots=allowed_roots,
            private=(self._home,),
            allow_local_paths=allow_local_paths,
            protocols=protocols,
            hosts=hosts,
        )
        self._git = Git(environ, max_disk_bytes=sandbox.policy.max_disk_bytes, slots=sandbox.slots)
        excludes = user_excludes(environ)
        self._local = LocalRepositories(
            self._git, self._policy, scratch=scratch, excludes=excludes, confine=sandbox.confining
        )
        routes = RemoteRoutes(
            self._policy.reachable,
            environ=environ,
            known_hosts=known_hosts or self._home / "known_hosts",
            scratch=scratch,
            resolver=resolver,
        )
        self._remotes = RemoteRepositories(
            git=self._git, routes=routes, askpass=self._home / "askpass", protocols=protocols, credentials=credentials
        )
        bounds = bounds or CloneBounds()
        unmeasured_bytes = sandbox.policy.max_disk_bytes
        disk = TenantDisk(home=self._home, max_bytes=bounds.tenant_disk_bytes, unmeasured_bytes=unmeasured_bytes)
        self._origins = Origins(
            self._home,
            self._git,
            self._policy,
            local=self._local,
            remotes=self._remotes,
            uploads=UploadedRepositories(git=self._git, fetch=fetch),
            disk=disk,
            fetch=fetch,
        )
        self._clones = Clones(self._home / "workspaces", self._git, sandbox, bounds=bounds)
        self._deliveries = Deliveries(
            git=self._git, remotes=self._remotes, scratch=scratch, max_patch_bytes=bounds.patch_bytes
        )
        self._images = ImageStore(self._home, images or ImageRules(), disk)
        self._environments = Environments(
            self._home / "environments",
            self._git,
            sandbox,
            self._clones,
            PythonTools(self._home / "tools"),
            disk,
            policy=setup or SetupPolicy(network=NetworkGrant(hosts=("*",)), variables={}),
            images=self._images,
            mask=mask or _unmasked,
            recipes=recipes,
        )

    async def pin(self, tenant: str, repo: RepoRef) -> PinnedRepository:
        """Resolve a repository to a commit, and store that commit with its ancestry in a seed.

        A local path means HEAD and its uncommitted changes, as `repo.uncommitted` says; they are looked for only if the
        reference is HEAD's commit. With INCLUDE they become a snapshot commit in our cache, never
        in the user's repository. Raises InvalidRequest, PreconditionFailed, Unavailable with `field`.
        """
        for name, text in (("repo.ref", repo.ref), ("repo.commit", repo.commit)):
            if text.startswith("-") or any(ord(character) < 32 for character in text):
                raise InvalidRequest(f"{text[:64]!r} is not a reference", field=name)
        subdirectory = _subdirectory(repo.subdirectory)
        repository, seed = await self._origins.pin(tenant, repo)
        repository = replace(repository, subdirectory=subdirectory or repository.subdirectory)
        await self._check_subdirectory(seed, repository.subdirectory)
        return repository

    async def pin_image(self, tenant: str, spec: EnvironmentSpec) -> EnvironmentSpec:
        """The specification with its image's digest, which is asked for with the tenant's credential.

        Raises InvalidRequest, PreconditionFailed, Unavailable with `field`.
        """
        if not spec.image:
            return spec
        if not self._images.pulled_by_cluster:
            self._environments.check_images()
        return replace(spec, image=await self._images.pin(tenant, spec.image, spec.image_credential))

    def receiving(self) -> AbstractAsyncContextManager[Path]:
        """A directory for an upload, removed at the end of the context."""
        return vanishing(self._scratch)

    async def take(
        self, tenant: str, bundle: Path, digest: str, repo: RepoRef, store: Callable[[], Awaitable[None]]
    ) -> tuple[str, str]:
        """Check an uploaded bundle, unpack it and `store` it for other nodes; returns the (commit, branch) of `repo`.

        It becomes the tenant's repository `upload:<digest>`. Raises InvalidRequest naming the field,
        PreconditionFailed, ResourceExhausted, Unavailable.
        """
        repo = replace(repo, subdirectory=_subdirectory(repo.subdirectory))
        resolved = await self._origins.take(tenant, bundle, digest, repo, store)
        return resolved.commit, resolved.branch

    async def environment(self, repository: PinnedRepository, spec: EnvironmentSpec) -> Environment:
        """The environment of a repository, built in the sandbox or cached. Raises PreconditionFailed."""
        seed = await self._origins.seed(repository)
        return await self._environments.environment(repository, seed, spec)

    @asynccontextmanager
    async def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AsyncGenerator[GitClone]:
        """A new clean clone on branch `fleet/work`, removed at the end of the context."""
        seed, furnishing = await self._pinned_seed(execution_id, name, repository, environment)
        owner = Owner(tenant=repository.tenant, execution_id=execution_id)
        async with self._clones.open(owner, name, seed, environment, furnishing) as clone:
            yield clone

    @asynccontextmanager
    async def workshop(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AsyncGenerator[GitClone]:
        """A clone with a writable copy of its environment, and the network of set-up commands.

        Raises PreconditionFailed where this node's sandbox cannot mount one.
        """
        seed, furnishing = await self._pinned_seed(execution_id, name, repository, environment)
        async with vanishing(self._scratch) as directory:
            changed, writable = await self._environments.writable_copy(environment, directory)
            owner = Owner(tenant=repository.tenant, execution_id=execution_id)
            async with self._clones.open(owner, name, seed, changed, furnishing, writable=writable) as clone:
                yield clone

    @asynccontextmanager
    async def attach(
        self, name: str, repository: PinnedRepository, environment: Environment, *, furnished: bool = False
    ) -> AsyncGenerator[GitClone]:
        """The pinned local repository's own work tree instead of a clone, used as it is, and not removed.

        `furnished`: it belongs to the fleet, and gets the files that the environment's build left in its checkout.
        """
        check_identifier(name, field="agent_id")
        # It belongs to no execution whose end would release its pins.
        holder = f"attached-{secrets.token_hex(8)}"
        try:
            seed = await self._origins.seed(repository, execution_id=holder)
            self._pin(holder, environment)
            furnishing = await asyncio.to_thread(self._environments.furnishing, environment) if furnished else None
            owner, tree = Owner(tenant=repository.tenant, execution_id=name), Path(repository.location)
            async with self._clones.attach(owner, name, tree, seed, environment, furnishing) as clone:
                yield clone
        finally:
            await self.release(holder)

    async def clone_into(self, tenant: str, repo: RepoRef, path: Path) -> None:
        """Make a clone for the caller to keep, self-contained and without a remote. Raises as `pin` does."""
        repository = await self.pin(tenant, repo)
        _check_empty(path)
        await self._clones.copy(path, await self._origins.seed(repository), repository.branch or "main")

    async def copy_into(self, repository: PinnedRepository, path: Path) -> None:
        """Make a clone for the caller to keep on branch `fleet/work`, with the commit's ancestry, without a remote.

        Raises as `pin` does.
        """
        _check_empty(path)
        await self._clones.copy(path, await self._origins.seed(repository), WORK_BRANCH)

    async def deliver(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, delivery: Delivery
    ) -> Delivered:
        """Commit the patch on `delivery.branch` of the target repository. Idempotent.

        In a local repository only objects and that branch are added (`push` has no effect); a snapshot of
        uncommitted changes becomes the commit's parent. For a URL the branch is pushed if `delivery.push`, otherwise
        the commit stays in our cache. Raises PatchRejected, InvalidRequest, PreconditionFailed, Unavailable.
        """
        shared = repository.shared_commit
        return await self._deliver(execution_id, repository, delivery, patch=patch, known=shared)

    async def keep(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, ref: str, message: str
    ) -> Delivered:
        """Commit a patch under `refs/fleet/`, in a local repository or in our cache of a remote one.

        Raises PatchRejected, PreconditionFailed, Unavailable.
        """
        seed = await self._origins.seed(repository, execution_id=execution_id)
        location = self._policy.parse(repository.location, repository.tenant)
        remote = isinstance(location, Remote)
        target = (
            await self._origins.cache(repository) if remote else await self._local.find(location, repository.tenant)
        )
        return await self._deliveries.keep(target, repository, seed, patch, ref, message)

    async def patched(self, execution_id: str, repository: PinnedRepository, patch: bytes) -> PinnedRepository:
        """Our own commit of a patch on a pinned commit, on this node. The same patch gives the same commit.

        Raises PatchRejected with git's reason.
        """
        seed = await self._origins.seed(repository, execution_id=execution_id)
        cache = await self._origins.cache(repository)
        commit = await self._deliveries.commit(seed, patch, objects=cache / "objects")
        patched = replace(repository, commit=commit, snapshot_of=repository.shared_commit, bundle=None)
        await self._origins.plant(patched, seed)
        return patched

    async def merge(self, request: MergeRequest) -> Merge:
        """A three-way merge in a scratch repository, with its objects in our cache. Idempotent.

        Raises PatchRejected (the patch does not apply to its base), PreconditionFailed, ResourceExhausted.
        """
        head = await self._origins.seed(request.head, execution_id=request.execution_id)
        base = await self._origins.seed(request.base, execution_id=request.execution_id)
        # The merge may use objects of both, so the cache must have those of the base as well.
        await self._origins.cache(request.base)
        cache = await self._origins.cache(request.head)
        return await self._deliveries.merge(request, head=head, base=base, objects=cache / "objects")

    async def publish(
        self, execution_id: str, repository: PinnedRepository, since: str, delivery: Delivery
    ) -> Delivered:
        """Put `delivery.branch` of the target repository at our own pinned commit. Idempotent.

        `since` is a commit of the target on which it is based. Raises as `deliver` does.
        """
        return await self._deliver(execution_id, repository, delivery, patch=None, known=since)

    async def _deliver(
        self, execution_id: str, repository: PinnedRepository, delivery: Delivery, *, patch: bytes | None, known: str
    ) -> Delivered:
        seed = await self._origins.seed(repository, execution_id=execution_id)
        location = self._policy.parse(repository.location, repository.tenant)
        if isinstance(location, Remote):
            # An upload has no remote to push to.
            delivery = replace(delivery, push=delivery.push and not location.upload)
            # Several candidates of an execution may be delivered, each on its own branch.
            pin = f"refs/fleet/delivered/{execution_id}.{hashlib.sha256(delivery.branch.encode()).hexdigest()[:8]}"
            cache = await self._origins.cache(repository)
            return await self._deliveries.to_remote(
                location, repository, seed, delivery, patch=patch, cache=cache, pin=pin
            )
        target = await self._local.find(location, repository.tenant)
        return await self._deliveries.to_local(target, repository, seed, delivery, patch=patch, known=known)

    async def export(self, repository: PinnedRepository, base: str, branch: str, *, since: str = "") -> Exported:
        """A pinned commit as a patch on `base`, and as a bundle with a branch since `since` (empty: the base).

        Raises InvalidRequest (invalid branch name), PreconditionFailed, ResourceExhausted (too large).
        """
        check_branch(branch, field="delivery.branch")
        return await self._deliveries.export(await self._origins.seed(repository), base, branch, since or base)

    async def warm(self) -> None:
        """Prepare the common parts of this node's environments, so that the first task need not wait for them."""
        await self._environments.warm()

    async def release(self, execution_id: str) -> None:
        """Remove an execution's pins, and those of its clones that no live process holds."""
        check_identifier(execution_id, field="execution_id")
        await uninterrupted(asyncio.to_thread(release, self._home, execution_id))

    async def forget(self, tenant: str, executions: Collection[str], uploads: Collection[str], *, whole: bool) -> None:
        """Remove this node's files of ended executions and of uploads (by digest); `whole`: of the tenant."""
        for execution_id in executions:
            await self.release(execution_id)
        directories = [path for digest in uploads for path in self._origins.directories(tenant, UPLOAD + digest)]
        await uninterrupted(asyncio.to_thread(forget, self._home, tenant if whole else "", directories))

    async def reap(self) -> RemovedCounts:
        """Remove the workspaces of dead processes, and seeds and environments that have been unused for long."""
        return await asyncio.to_thread(reap, self._home, self._ages)

    async def _pinned_seed(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> tuple[Path, tuple[Path, Furnishing]]:
        """(the seed, the furnishing of clones), both pinned for an execution."""
        check_identifier(name, field="name")
        seed = await self._origins.seed(repository, execution_id=execution_id)
        furnishing = await asyncio.to_thread(self._environments.furnishing, environment)
        self._pin(execution_id, environment)
        return seed, furnishing

    def _pin(self, execution_id: str, environment: Environment) -> None:
        """Pin an environment and its image until the execution is released."""
        pins = [f"environment-{environment.key}"] if environment.key else []
        pins += [f"image-{environment.image.digest.partition(':')[2]}"] if environment.image else []
        for name in pins:
            pin = self._home / "pins" / execution_id / name
            pin.parent.mkdir(parents=True, exist_ok=True)
            pin.touch()

    async def _check_subdirectory(self, seed: Path, subdirectory: str) -> None:
        if not subdirectory:
            return
        answer = await self._git.run(
            *("cat-file", "--batch-check=%(objecttype)"),
            layout=GitLayout(git_dir=seed),
            stdin=os.fsencode(f"{seed.name}:{subdirectory}\n"),
        )
        if answer.text() != "tree":
            fault = f"{subdirectory[:256]!r} is not a directory of the commit"
            raise PreconditionFailed(fault, field="repo.subdirectory")


def _unmasked(text: str) -> str:
    return text


def _check_empty(path: Path) -> None:
    if path.exists() and any(path.iterdir()):
        raise PreconditionFailed(f"{path.name} is not empty", field="workspace_path")


def _subdirectory(text: str) -> str:
    path = PurePosixPath(text.strip().removeprefix("./"))
    if path.is_absolute() or ".." in path.parts or any(ord(character) < 32 for character in text):
        raise InvalidRequest(f"{text[:128]!r} is not a directory of the repository", field="repo.subdirectory")
    return "" if str(path) == "." else str(path)
