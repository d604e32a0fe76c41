"""The clones of a node: made from seeds, whose history they read."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.clone import CloneBounds, CloneDirs, GitClone
from swe_ai_fleet.adapters.git_workspace.directories import try_lock
from swe_ai_fleet.adapters.git_workspace.furnishing import Furnishing, furnish
from swe_ai_fleet.adapters.git_workspace.git import (
    Git,
    GitLayout,
)
from swe_ai_fleet.adapters.git_workspace.git_dirs import (
    BY_PRODUCTS,
    WORK_BRANCH,
    history_of,
    packed_refs,
    submodules_of,
    write_git_dir,
)
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox import IsolationLevel, LocalWorkspace, Sandbox
from swe_ai_fleet.sandbox.disk import remove_tree
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_CHECKOUT_TIMEOUT_SECONDS = 600.0


class Clones:
    """Makes clones below `home`, at `<execution>/<name>-<unique>`, each with a lock file that its process holds."""

    def __init__(self, home: Path, git: Git, sandbox: Sandbox, *, bounds: CloneBounds) -> None:
        self._home = home
        self._bounds = bounds
        self._git = git
        self._sandbox = sandbox
        self._submodules_of: dict[str, frozenset[bytes]] = {}

    @asynccontextmanager
    async def open(
        self,
        owner: Owner,
        name: str,
        seed: Path,
        environment: Environment,
        furnishing: tuple[Path, Furnishing],
        *,
        writable: tuple[Mount, ...] = (),
    ) -> AsyncGenerator[GitClone]:
        """A clean clone of the seed's commit in a sandbox, removed at the end of the context in any case.

        `furnishing` are the environment's directory and the files from there that the clone gets; `writable` are
        directories that its commands may write to.
        """
        history = history_of(seed)
        if self._sandbox.policy.level is not IsolationLevel.NONE:
            # At the same path as on the host, which is the one in the clone's alternates.
            objects = Mount(source=str(history.objects), target=str(history.objects))
            environment = replace(environment, mounts=(*environment.mounts, objects))
        async with (
            self._clone_dirs(owner.execution_id, name, seed, furnishing) as clone_dirs,
            self._sandbox.workspace(
                clone_dirs.tree, environment=environment, writable=writable, scratch=clone_dirs.directory, owner=owner
            ) as workspace,
            _warming(workspace),
        ):
            await self._fill(clone_dirs, seed)
            yield self._clone(workspace, clone_dirs, seed)

    @asynccontextmanager
    async def attach(
        self,
        owner: Owner,
        name: str,
        tree: Path,
        seed: Path,
        environment: Environment,
        furnishing: tuple[Path, Furnishing] | None = None,
    ) -> AsyncGenerator[GitClone]:
        """The caller's own clone at the seed's commit, used in place; at the end only our own directory is removed.

        The files of a `furnishing` stay in the tree.
        """
        async with self._clone_dirs("attached", name, seed, furnishing, attached=tree) as clone_dirs:
            await self._git.run("read-tree", seed.name, layout=clone_dirs.layout)
            if clone_dirs.furnishing:
                await uninterrupted(asyncio.to_thread(_furnish_attached, clone_dirs))
            async with self._sandbox.workspace(tree, environment=environment, owner=owner) as workspace:
                yield self._clone(workspace, clone_dirs, seed)

    def _clone(self, workspace: LocalWorkspace, clone_dirs: CloneDirs, seed: Path) -> GitClone:
        return GitClone(
            self._git,
            workspace,
            clone_dirs,
            history_of(seed),
            base_commit=seed.name,
            bounds=self._bounds,
            submodules=self._submodules_of,
        )

    async def copy(self, tree: Path, seed: Path, branch: str) -> None:
        """Make a self-contained clone of the seed's commit at `tree`, for the caller to keep."""
        dot_git = tree / ".git"
        history = history_of(seed)
        await asyncio.to_thread(
            write_git_dir,
            dot_git,
            head=f"ref: refs/heads/{branch}",
            object_format=history.object_format,
            work_tree=True,
        )
        await asyncio.to_thread(shutil.copytree, history.objects, dot_git / "objects", dirs_exist_ok=True)
        head = dot_git / "refs/heads" / branch
        head.parent.mkdir(parents=True, exist_ok=True)
        head.write_text(f"{seed.name}\n")
        if history.shallow:
            (dot_git / "shallow").write_bytes(history.shallow)
        (dot_git / "packed-refs").write_bytes(packed_refs(seed))
        await self._check_out(tree)
        await self._check_out_submodules(tree, seed, dot_git / "submodule-index")

    @asynccontextmanager
    async def checkout(self, execution_id: str, name: str, seed: Path) -> AsyncGenerator[CloneDirs]:
        """The directories of a clone with the seed's commit checked out, without a sandbox."""
        async with self._clone_dirs(execution_id, name, seed) as clone_dirs:
            await self._fill(clone_dirs, seed)
            yield clone_dirs

    @asynccontextmanager
    async def _clone_dirs(
        self,
        folder: str,
        name: str,
        seed: Path,
        furnishing: tuple[Path, Furnishing] | None = None,
        attached: Path | None = None,
    ) -> AsyncGenerator[CloneDirs]:
        """The directories of a clone, with an empty tree or the caller's own; removed at the end."""
        directory = self._home / folder / f"{name}-{secrets.token_hex(4)}"
        root, furnished = furnishing or (Path(), Furnishing())
        clone_dirs = CloneDirs(directory=directory, attached=attached, root=root, furnishing=furnished)
        lock = _hold(clone_dirs.lock)
        try:
            await uninterrupted(asyncio.to_thread(_write_clone_dirs, clone_dirs, seed))
            yield clone_dirs
        finally:
            await uninterrupted(asyncio.to_thread(_remove_clone_dirs, clone_dirs, lock))

    async def _fill(self, clone_dirs: CloneDirs, seed: Path) -> None:
        """Check out HEAD and its submodules into the tree whose `.git` we wrote, and add the furnishing."""
        await self._check_out(clone_dirs.tree)
        # With its modification time, by which git decides which entries it may trust.
        shutil.copy2(clone_dirs.tree / ".git/index", clone_dirs.git_dir / "index")
        await self._check_out_submodules(clone_dirs.tree, seed, clone_dirs.git_dir / "submodule-index")
        if clone_dirs.furnishing:
            await uninterrupted(asyncio.to_thread(furnish, clone_dirs.tree, clone_dirs.root, clone_dirs.furnishing))

    async def _check_out_submodules(self, tree: Path, seed: Path, index: Path) -> None:
        """Check out submodules into their directories, which git has just made: no links lead there."""
        for submodule in submodules_of(seed):
            if submodule.tree:
                directory = tree / submodule.path
                await self._git.run(
                    *("read-tree", "--reset", "-u", submodule.tree),
                    layout=GitLayout(git_dir=tree / ".git", work_tree=directory, index=index),
                    cwd=directory,
                    timeout_seconds=_CHECKOUT_TIMEOUT_SECONDS,
                )
                await asyncio.to_thread(index.unlink)

    async def _check_out(self, tree: Path) -> None:
        await self._git.run(
            *("read-tree", "--reset", "-u", "HEAD"),
            layout=GitLayout(git_dir=tree / ".git", work_tree=tree),
            cwd=tree,
            timeout_seconds=_CHECKOUT_TIMEOUT_SECONDS,
        )


@asynccontextmanager
async def _warming(workspace: LocalWorkspace) -> AsyncGenerator[None]:
    """Start the sandbox in the background; if that fails, the first command reports it."""
    warming = asyncio.create_task(workspace.warm())
    try:
        yield
    finally:
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)


def _hold(lock: Path) -> int:
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = try_lock(lock)
        except FileNotFoundError:
            continue  # the reaper has just removed the empty directory
        if descriptor is not None:
            return descriptor
        raise PreconditionFailed(f"{lock.name} is held by another process")  # the name is random: it is being reaped


def _furnish_attached(clone_dirs: CloneDirs) -> None:
    furnish(clone_dirs.tree, clone_dirs.root, clone_dirs.furnishing)
    exclude = clone_dirs.tree / ".git/info/exclude"
    exclude.parent.mkdir(exist_ok=True)
    with exclude.open("ab") as file:
        file.write(os.fsencode("".join(f"{line}\n" for line in clone_dirs.furnishing.excludes)))


def _write_clone_dirs(clone_dirs: CloneDirs, seed: Path) -> None:
    history, commit = history_of(seed), seed.name
    excludes = (*BY_PRODUCTS, *clone_dirs.furnishing.excludes)
    if clone_dirs.attached is None:
        clone_dirs.tree.mkdir(parents=True)
        dot_git, head = clone_dirs.tree / ".git", f"ref: refs/heads/{WORK_BRANCH}"
        write_git_dir(dot_git, head=head, history=history, excludes=excludes, work_tree=True)
        (dot_git / "packed-refs").write_bytes(packed_refs(seed))
        branch = dot_git / "refs/heads" / WORK_BRANCH
        branch.parent.mkdir(parents=True)
        branch.write_text(f"{commit}\n")
    write_git_dir(clone_dirs.git_dir, head=commit, history=history, excludes=excludes, work_tree=True)


def _remove_clone_dirs(clone_dirs: CloneDirs, lock: int) -> None:
    try:
        remove_tree(clone_dirs.directory)
        clone_dirs.lock.unlink(missing_ok=True)
    finally:
        os.close(lock)
    # not empty while other clones of the execution exist
    with suppress(OSError):
        clone_dirs.directory.parent.rmdir()
