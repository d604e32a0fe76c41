"""Origins of pinned commits on this node: a path, a URL, or one of the fleet's own bundles."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from swe_ai_fleet.adapters.git_workspace.bundles import merged_tags, read_header, unpack
from swe_ai_fleet.adapters.git_workspace.disk_space import TenantDisk
from swe_ai_fleet.adapters.git_workspace.git import Git, GitLayout
from swe_ai_fleet.adapters.git_workspace.git_dirs import (
    FIXED_IDENTITY,
    GitHistory,
    Seeds,
    Submodules,
    begin_cache,
    format_of,
    stored_history,
    submodules_of,
)
from swe_ai_fleet.adapters.git_workspace.local import LocalRepositories, LocalRepository, Resolved
from swe_ai_fleet.adapters.git_workspace.locations import LocationPolicy, Remote
from swe_ai_fleet.adapters.git_workspace.remote import RemoteRepositories
from swe_ai_fleet.adapters.git_workspace.uploads import BlobFetch, UploadedRepositories
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.domain.task import SCRATCH, UPLOAD, PinnedRepository, RepoRef, check_identifier

_MOST_COMMITS = 100


class Origins:
    """Finds commits and makes their seeds, below `home` in `repositories`, `seeds` and `pins`.

    `fetch` gets the bundle of a commit that its location lacks; None: such commits are only on the node that made them.
    """

    def __init__(
        self,
        home: Path,
        git: Git,
        policy: LocationPolicy,
        *,
        local: LocalRepositories,
        remotes: RemoteRepositories,
        uploads: UploadedRepositories,
        disk: TenantDisk,
        fetch: BlobFetch | None,
    ) -> None:
        self._home = home
        self._keys = RepositoryKeys(home)
        self._git = git
        self._policy = policy
        self._local = local
        self._remotes = remotes
        self._uploads = uploads
        self._seeds = Seeds(home / "seeds", git)
        self._submodules = Submodules(git=git, policy=policy, seeds=self._seeds, holds=local.holds)
        self._disk = disk
        self._fetch = fetch

    async def pin(self, tenant: str, repo: RepoRef) -> tuple[PinnedRepository, Path]:
        """The current commit of a reference, and its seed. A path inside a work tree becomes the subdirectory.

        Raises InvalidRequest, PreconditionFailed, Unavailable with `field`.
        """
        if repo.location == SCRATCH:
            return await self._scratch(tenant)
        location, subdirectory = self._policy.parse(repo.location, tenant), ""
        if isinstance(location, Remote):
            name = location.url
            key = self._keys.key(tenant, repo.credential, name)
            cache = self._cache(key)
            resolved = await self._obtain(tenant, repo, location, cache)
            origin: Remote | LocalRepository = location
        else:
            origin = local = await self._local.find(location, tenant)
            name = str(local.top)
            key = self._keys.key(tenant, repo.credential, name)
            cache = self._cache(key)
            await self._local_cache(key, local)
            resolved = await self._local.resolve(local, repo, cache / "objects")
            if not local.bare and location != local.top:
                subdirectory = location.relative_to(local.top).as_posix()
        seed = self._seeds.find(key, resolved.commit)
        if seed is None:
            await self._disk.admit(tenant, cache)
            if isinstance(origin, LocalRepository):
                seed = await self._plant_local(key, origin, resolved)
            else:
                seed = await self._plant_remote(key, resolved.commit)
            await self._add_submodules(seed, tenant, repo, origin)
        elif not all(submodule.tree for submodule in await asyncio.to_thread(submodules_of, seed)):
            await self._add_submodules(seed, tenant, repo, origin)
        else:
            await self._disk.recorded(tenant, seed)
        pinned = PinnedRepository(
            tenant=tenant,
            location=name,
            commit=resolved.commit,
            branch=resolved.branch,
            subdirectory=subdirectory,
            credential=repo.credential,
            snapshot_of=resolved.snapshot_of,
        )
        return pinned, seed

    async def seed(self, repository: PinnedRepository, *, execution_id: str | None = None) -> Path:
        """The seed of a pinned repository, made again where it is missing (on another node, or after reaping).

        With an `execution_id` it is pinned until that is released.
        """
        key = self._keys.of(repository)
        if execution_id is not None:
            holder = check_identifier(execution_id, field="execution_id")
            pin = self._home / "pins" / holder / f"{key}-{repository.commit}"
            if not pin.exists():
                pin.parent.mkdir(parents=True, exist_ok=True)
                pin.touch()
        seed = self._seeds.find(key, repository.commit)
        if seed is not None:
            return seed
        location: Path | Remote | None = None
        if repository.location != SCRATCH:
            location = self._policy.parse(repository.location, repository.tenant)
            if isinstance(location, Remote) and repository.bundle is None:
                await self._resolve(repository, location, repository.commit)
        cache = await self.cache(repository)
        over = await self._ancestor(repository, cache)
        if location is None:
            return await self._planted(repository, stored_history(cache, repository.commit), over)
        if isinstance(location, Remote):
            await self._disk.admit(repository.tenant, cache)
            origin: Remote | LocalRepository = location
            seed = await self._plant_remote(key, repository.commit, over)
        else:
            origin = await self._local.find(location, repository.tenant)
            ours = repository.snapshot_of or (repository.commit if repository.bundle else "")
            seed = await self._plant_local(key, origin, Resolved(commit=repository.commit, snapshot_of=ours), over)
        repo = RepoRef(location=repository.location, commit=repository.commit, credential=repository.credential)
        await self._add_submodules(seed, repository.tenant, repo, origin)
        return seed

    async def plant(self, repository: PinnedRepository, over: Path) -> Path:
        """The seed of our own commit in the repository's cache, on top of the seed of an ancestor."""
        source = stored_history(await self.cache(repository), repository.commit)
        return await self._planted(repository, source, over)

    async def _planted(self, repository: PinnedRepository, source: GitHistory, over: Path | None) -> Path:
        key = self._keys.of(repository)
        await self._disk.admit(repository.tenant, self._cache(key))
        seed = await self._seeds.plant(key, repository.commit, source, over=over)
        await self._disk.admit(repository.tenant, seed)
        return seed

    async def take(
        self, tenant: str, bundle: Path, digest: str, repo: RepoRef, store: Callable[[], Awaitable[None]]
    ) -> Resolved:
        """Accept an uploaded bundle; see `UploadedRepositories.take`."""
        cache = self._cache(self._keys.key(tenant, "", UPLOAD + digest))
        return await self._uploads.take(tenant, cache, bundle, repo, store)

    async def _plant_remote(self, key: str, commit: str, over: Path | None = None) -> Path:
        cache = self._cache(key)
        tags = () if over else await merged_tags(self._git, GitLayout(git_dir=cache), commit)
        return await self._seeds.plant(key, commit, stored_history(cache, commit), over=over, tags=tags)

    async def _plant_local(
        self, key: str, local: LocalRepository, resolved: Resolved, over: Path | None = None
    ) -> Path:
        # A snapshot has the tags of its base commit.
        commit = resolved.snapshot_of or resolved.commit
        tags = () if over else await merged_tags(self._git, GitLayout(git_dir=local.git_dir), commit)
        source = local.history
        if resolved.snapshot_of:
            source = replace(source, objects=self._cache(key) / "objects")
        return await self._seeds.plant(key, resolved.commit, source, over=over, tags=tags)

    async def _add_submodules(self, seed: Path, tenant: str, repo: RepoRef, location: Remote | LocalRepository) -> None:
        """Add the submodules of a seed's commit; the credential is for the repository's own host only.

        Raises ResourceExhausted where the tenant has no room for the seed.
        """
        stores: Path | None = None
        if isinstance(location, LocalRepository):
            url, stores = await self._local.remote_url(location), location.common_dir / "modules"
        else:
            url = "" if location.upload else location.url

        async def fetch(remote: Remote, commit: str) -> GitHistory:
            credential = repo.credential if _host(remote.url) == _host(url) else ""
            source = RepoRef(location=remote.url, commit=commit, credential=credential)
            cache = self._cache(self._keys.key(tenant, credential, remote.url))
            await self._obtain(tenant, source, remote, cache)
            await self._disk.admit(tenant, cache)
            return stored_history(cache, commit)

        await self._submodules.provide(seed, location=url, stores=stores, tenant=tenant, fetch=fetch)
        await self._disk.admit(tenant, seed)

    async def _scratch(self, tenant: str) -> tuple[PinnedRepository, Path]:
        """The empty repository; every node makes the same commit."""
        repository = PinnedRepository(tenant=tenant, location=SCRATCH, commit="")
        cache = await self._scratch_cache(self._cache(self._keys.of(repository)), repository)
        repository = replace(repository, commit=await self._empty(cache))
        return repository, await self.seed(repository)

    async def _scratch_cache(self, cache: Path, repository: PinnedRepository) -> Path:
        await begin_cache(cache)
        layout = GitLayout(git_dir=cache)
        await self._empty(cache)
        if repository.bundle is not None and not await self._git.commit(layout, repository.commit):
            await self._unpack(repository, None, layout, repository.bundle)
        return cache

    async def _empty(self, cache: Path) -> str:
        """The commit without files, created if it is missing."""
        layout = GitLayout(git_dir=cache)
        tree = (await self._git.run("mktree", layout=layout, stdin=b"")).text()
        commit = await self._git.run(
            "commit-tree", tree, layout=layout, stdin=b"Nothing yet\n", variables=FIXED_IDENTITY
        )
        return commit.text()

    async def _ancestor(self, repository: PinnedRepository, cache: Path) -> Path | None:
        """The existing seed of the nearest ancestor of a commit in a bundle, if there is one."""
        if repository.bundle is None:
            return None
        ancestors = await self._git.run(
            *("rev-list", "--first-parent", f"--max-count={_MOST_COMMITS}", f"{repository.commit}~1"),
            layout=GitLayout(git_dir=cache),
            expect=(0, 128),
        )
        seeds = (self._seeds.find(self._keys.of(repository), commit) for commit in ancestors.lines())
        return next((seed for seed in seeds if seed is not None), None)

    async def cache(self, repository: PinnedRepository) -> Path:
        """Our own git directory with the commit, for commits that the fleet adds. Raises as `seed` does."""
        key = self._keys.of(repository)
        cache = self._cache(key)
        if repository.location == SCRATCH:
            return await self._scratch_cache(cache, repository)
        location = self._policy.parse(repository.location, repository.tenant)
        if not isinstance(location, Remote):
            await self._local_cache(key, await self._local.find(location, repository.tenant))
        elif location.upload:
            repo = RepoRef(location=repository.location)
            await self._uploads.resolve(repository.tenant, repo, location.upload, cache)
        else:
            await begin_cache(cache, object_format=format_of(repository.commit))
        layout = GitLayout(git_dir=cache)
        # Its objects are there as well: a commit is written after its tree, and a pack appears complete.
        if await self._git.commit(layout, repository.commit):
            return cache
        if repository.bundle is not None:
            await self._unpack(repository, location, layout, repository.bundle)
        elif isinstance(location, Remote):
            await self._resolve(repository, location, repository.commit)
        return cache

    async def _unpack(
        self, repository: PinnedRepository, location: Remote | Path | None, layout: GitLayout, bundle: BlobRef
    ) -> None:
        if self._fetch is None:
            raise PreconditionFailed(f"commit {repository.commit[:12]} is only known on another node", field="repo")
        data = await self._fetch(bundle)
        for prerequisite in read_header(data).prerequisites:
            if isinstance(location, Remote):
                await self._resolve(repository, location, prerequisite)
        await unpack(self._git, layout, data, repository.commit)

    async def _resolve(self, repository: PinnedRepository, location: Remote, commit: str) -> None:
        repo = RepoRef(location=repository.location, commit=commit, credential=repository.credential)
        await self._obtain(repository.tenant, repo, location, self._cache(self._keys.of(repository)))

    async def _obtain(self, tenant: str, repo: RepoRef, location: Remote, cache: Path) -> Resolved:
        """Fetch the commit of a reference to a remote repository or an upload into the cache."""
        try:
            if location.upload:
                resolved = await self._uploads.resolve(tenant, repo, location.upload, cache)
            else:
                resolved = await self._remotes.resolve(tenant, repo, location, cache)
        except FleetError:
            # Objects of a failed fetch count for the limit as well.
            await self._disk.admit(tenant, cache)
            raise
        os.utime(cache)
        return resolved

    def directories(self, tenant: str, location: str) -> tuple[Path, ...]:
        """The directories of a location's cache and its seeds on this node, which may not exist."""
        key = self._keys.key(tenant, "", location)
        return self._cache(key), self._home / "seeds" / key

    def _cache(self, key: str) -> Path:
        return self._home / "repositories" / key

    async def _local_cache(self, key: str, local: LocalRepository) -> None:
        """Make the cache for snapshots of a local repository: our own objects on top of the user's."""
        cache = self._cache(key)
        await begin_cache(cache, history=local.history)
        os.utime(cache)


def _host(url: str) -> str:
    """The host and port of a URL, or of the form `host:path`."""
    return urlsplit(url).netloc.rpartition("@")[2] if "://" in url else url.partition(":")[0].rpartition("@")[2]


class RepositoryKeys:
    """The names of repositories' caches and seeds on this machine, which others cannot compute.

    They are made with a random secret in `home`, which the first process that needs it creates.
    """

    def __init__(self, home: Path) -> None:
        self._secret = _secret_in(home / "repositories.key")

    def of(self, repository: PinnedRepository) -> str:
        """The key of a pinned repository."""
        return self.key(repository.tenant, repository.credential, repository.location)

    def key(self, tenant: str, credential: str, location: str) -> str:
        """The key of a tenant's location with a credential."""
        identity = os.fsencode("\0".join((tenant, credential, location)))
        return hmac.new(self._secret, identity, hashlib.sha256).hexdigest()[:32]


def _secret_in(path: Path) -> bytes:
    """The random secret in a file; created by one of the processes that need it. Blocking."""
    if not path.exists():
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        draft.touch(mode=0o600)
        draft.write_bytes(secrets.token_bytes(32))
        with suppress(FileExistsError):
            # A link appears complete, and never replaces an existing file.
            path.hardlink_to(draft)
        draft.unlink()
    return path.read_bytes()
