"""A clone: a work tree for one agent or one check, with its diff, patches and checkpoints."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.bundles import bundled, restore_checkpoint, take_checkpoint
from swe_ai_fleet.adapters.git_workspace.directories import read_file
from swe_ai_fleet.adapters.git_workspace.furnishing import Furnishing, furnish, remove
from swe_ai_fleet.adapters.git_workspace.git import (
    COMMIT_ID,
    PATCH_FORM,
    Git,
    GitLayout,
    apply_patch,
    bounded,
    diff_of,
    touched,
)
from swe_ai_fleet.adapters.git_workspace.git_dirs import FIXED_IDENTITY, WORK_BRANCH, GitHistory
from swe_ai_fleet.adapters.git_workspace.local import object_stores
from swe_ai_fleet.adapters.git_workspace.staging import StagedChanges, changes, gitlinks, stage
from swe_ai_fleet.domain.candidate import Diff
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import PatchRejected, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.ports import Checkpoint, RepositoryBundle
from swe_ai_fleet.sandbox import LocalWorkspace
from swe_ai_fleet.sandbox.disk import remove_tree
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_HEAD_TIMEOUT_SECONDS = 10.0
_ON_BRANCH = re.compile(r"ref: refs/heads/(\w[\w-]*(?:/\w[\w-]*)*)\n", re.ASCII)
# So many bytes of outdated staged objects may remain before our git directory is cleaned.
_COMPACTED_BYTES = 64 * 1024 * 1024
_COMMITS_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneDirs:
    """The directories of one clone: the agent's work tree, and beside it our git directory, which the agent never sees.

    `git_dir` has its own index: our git ignores whatever is written into the tree's `.git` (config, hooks, filters).
    `attached` is a caller's own tree anywhere. `furnishing` are files of the environment at `root` that are put into
    the tree beside those of the commit.
    """

    directory: Path
    attached: Path | None = None
    root: Path = Path()
    furnishing: Furnishing = field(default_factory=Furnishing)

    @property
    def lock(self) -> Path:
        """The lock file that the clone's process holds."""
        return self.directory.with_name(f"{self.directory.name}.lock")

    @property
    def tree(self) -> Path:
        return self.attached or self.directory / "tree"

    @property
    def git_dir(self) -> Path:
        return self.directory / "git"

    @property
    def layout(self) -> GitLayout:
        return GitLayout(git_dir=self.git_dir, work_tree=self.tree, index=self.git_dir / "index")


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneBounds:
    """The limits of a clone's diff and checkpoint, and of a tenant's share of this node's disk, in bytes.

    The share includes environments, seeds and caches of repositories; 0: no limit.
    """

    patch_bytes: int = 32 * 1024 * 1024
    checkpoint_bytes: int = 256 * 1024 * 1024
    tenant_disk_bytes: int = 0


class GitClone:
    """A workspace that holds a clone; `ports.Clone`."""

    def __init__(
        self,
        git: Git,
        workspace: LocalWorkspace,
        clone_dirs: CloneDirs,
        history: GitHistory,
        *,
        base_commit: str,
        bounds: CloneBounds,
        submodules: dict[str, frozenset[bytes]],
    ) -> None:
        self._git = git
        self._workspace = workspace
        self._clone_dirs = clone_dirs
        self._history = history
        self.base_commit = base_commit
        self._bounds = bounds
        self._staged_bytes = 0
        self._submodules: frozenset[bytes] | None = None
        self._submodules_of = submodules
        self._known_heads: dict[str, str] = {}
        self._restored = False
        self._index = asyncio.Lock()

    @property
    def root(self) -> Path:
        return self._workspace.root

    @property
    def mount(self) -> str:
        return self._workspace.mount

    @property
    def environment(self) -> Environment:
        return self._workspace.environment

    @property
    def _used(self) -> bool:
        """Whether its tree and its `.git` may have been changed since we wrote them."""
        return self._restored or self._workspace.used

    async def run(self, command: Command) -> CommandResult:
        """Run a command in the sandbox."""
        return await self._workspace.run(command)

    async def diff(self) -> Diff:
        """All changes since the base commit, committed or not, untracked files included.

        Left out: ignored files, by-products of tools (caches, `node_modules`), the content of submodules.
        Raises ResourceExhausted (a larger patch than allowed), PreconditionFailed (a file that cannot be read).
        """
        what, most = "the changes make a patch", self._bounds.patch_bytes
        async with self._changes(what, most, counted=True) as changed:
            if not changed.some:
                return Diff(patch=b"")
            against = ("diff", "--cached", self.base_commit)
            with bounded(what, most):
                # From the index alone: files that changed in the tree meanwhile (attributes too) are not read again.
                bare = replace(self._clone_dirs.layout, work_tree=None)
                patch = await self._git.run(*against, *PATCH_FORM, layout=bare, output_limit=most)
        return await asyncio.to_thread(diff_of, patch.stdout, changed.counts)

    async def apply(self, patch: bytes, *, branch: str = "") -> None:
        """Apply a patch to the tree and the index of a clone in which nothing has run yet.

        With a `branch` the tree is first reset to the base commit, and the patch is committed to that branch,
        which is checked out; a rejected patch leaves the branch at the base commit.

        Raises PatchRejected with git's reason (nothing is changed then), PreconditionFailed (a command has run: the
        clone's `.git` may no longer be ours).
        """
        if self._used:
            raise PreconditionFailed("a patch can only be applied before anything has run in the clone")
        dot_git = self._clone_dirs.tree / ".git"
        layout = GitLayout(git_dir=dot_git, work_tree=self._clone_dirs.tree, alternates=(self._history.objects,))
        async with self._index:
            if branch:
                await self._begin(branch, layout)
            if not patch.strip():
                return
            await self._make_room(patch)
            try:
                await apply_patch(self._git, patch, "--index", layout=layout, cwd=self._clone_dirs.tree)
            except PatchRejected:
                await self._furnish()
                raise
            if branch:
                await self._commit(branch, layout)

    async def _begin(self, branch: str, layout: GitLayout) -> None:
        """Check out a branch at the base commit, unaffected by the repository's attributes and tags."""
        name = f"refs/heads/{branch}"
        # This file takes precedence over every .gitattributes.
        await asyncio.to_thread((layout.git_dir / "info/attributes").write_text, "* !diff\n")
        # For git a tag takes precedence over a branch of its name.
        await self._git.run("update-ref", "-d", f"refs/tags/{branch}", layout=layout)
        await self._git.run("update-ref", name, self.base_commit, layout=layout)
        await self._git.run("symbolic-ref", "HEAD", name, layout=layout)
        await self._git.run("read-tree", "--reset", "-u", self.base_commit, layout=layout)

    async def _commit(self, branch: str, layout: GitLayout) -> None:
        """Commit the index to a branch that begins at the base commit."""
        tree = (await self._git.run("write-tree", layout=layout)).text()
        parent = ("commit-tree", tree, "-p", self.base_commit, "-m", branch)
        commit = await self._git.run(*parent, layout=layout, variables=FIXED_IDENTITY)
        await self._git.run("update-ref", f"refs/heads/{branch}", commit.text(), layout=layout)

    async def checkpoint(self) -> Checkpoint:
        """The current HEAD and tree, untracked files included.

        Left out: what `diff` leaves out, the index, and all branches but HEAD's. A broken HEAD counts as the base
        commit. Raises ResourceExhausted, PreconditionFailed.
        """
        head, branch = await self.head() if self._used else (self.base_commit, WORK_BRANCH)
        async with self._index:
            if self._staged_bytes > _COMPACTED_BYTES:
                # Unchanged entries keep their files' stat data, so those files are not read again.
                await self._git.run("read-tree", "--reset", self.base_commit, layout=self._clone_dirs.layout)
                await uninterrupted(asyncio.to_thread(_forget_staged, self._clone_dirs))
                self._staged_bytes = 0
                self._known_heads.clear()
        what, most = "the workspace makes a checkpoint", self._bounds.checkpoint_bytes
        async with self._changes(what, most, counted=False) as changed:
            checkpoint = await take_checkpoint(
                self._git,
                replace(self._clone_dirs.layout, work_tree=None),
                self._workspace,
                base=self.base_commit,
                head=head or self.base_commit,
                branch=branch if head else WORK_BRANCH,
                changed=changed.some,
                known=self._known_heads,
                max_bytes=most,
            )
            self._staged_bytes += len(checkpoint.bundle)
            return checkpoint

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Restore another clone's checkpoint of the same commit in this clone, in which nothing has run yet.

        All changes are unstaged then. Raises PreconditionFailed.
        """
        if self._used:
            raise PreconditionFailed("a checkpoint can only be restored before anything has run in the clone")
        tree = self._clone_dirs.tree
        layout = GitLayout(git_dir=tree / ".git", work_tree=tree, alternates=(self._history.objects,))
        async with self._index:
            # Committed files of the other clone take precedence over the environment's of the same names.
            await asyncio.to_thread(remove, tree, self._clone_dirs.furnishing.kept)
            await restore_checkpoint(self._git, layout, checkpoint, scratch=self._clone_dirs.git_dir)
            await self._furnish()
        # From now on HEAD is read by the clone's own git.
        self._restored = True

    async def bundle(self, *, max_bytes: int) -> RepositoryBundle:
        """The base commit as a self-contained bundle, made by our git. Raises ResourceExhausted."""
        async with self._index:
            return await bundled(
                self._git,
                self._clone_dirs.layout,
                self.base_commit,
                shallow=bool(self._history.shallow),
                max_bytes=max_bytes,
            )

    async def _make_room(self, patch: bytes) -> None:
        """Remove the environment's files at paths that a patch changes."""
        kept = frozenset(self._clone_dirs.furnishing.kept)
        if kept:
            await asyncio.to_thread(remove, self._clone_dirs.tree, kept.intersection(await touched(self._git, patch)))

    async def _furnish(self) -> None:
        clone_dirs = self._clone_dirs
        await uninterrupted(asyncio.to_thread(furnish, clone_dirs.tree, clone_dirs.root, clone_dirs.furnishing))

    @asynccontextmanager
    async def _changes(self, what: str, most: int, *, counted: bool) -> AsyncGenerator[StagedChanges]:
        """The changes since the base commit in our own index, updated to the tree and locked until the context ends."""
        layout, found = self._clone_dirs.layout, list[StagedChanges]()

        async def links() -> frozenset[bytes]:
            with bounded(what, most):
                found.append(await changes(self._git, layout, self.base_commit, counted=counted))
            return found[-1].links

        async with self._index:
            try:
                if not await self._stage(links):
                    await links()
                yield found[-1]
            except ResourceExhausted:
                # The index has the excess files by now, and .gitignore does not apply to files in an index.
                await self._git.run("read-tree", self.base_commit, layout=layout)
                raise

    async def _stage(self, links: Callable[[], Awaitable[frozenset[bytes]]]) -> bool:
        """Update our own index to the tree; returns whether `links` was called."""
        layout = self._clone_dirs.layout
        if self._submodules is None:
            self._submodules = self._submodules_of.get(self.base_commit)
        if self._submodules is None:
            # Before its first update the index is the commit's, as in all of its clones.
            self._submodules = await gitlinks(self._git, layout)
            if len(self._submodules_of) >= _COMMITS_KEPT:
                self._submodules_of.clear()
            self._submodules_of[self.base_commit] = self._submodules
        async with self._workspace.frozen():
            confining: tuple[str, ...] = ()
            if self._used:
                # Processes cannot be frozen everywhere: a running one could lead git out of the tree by a link.
                stores = await asyncio.to_thread(object_stores, self._history.objects)
                confining = await self._workspace.confining(readable=tuple(stores), writable=(layout.git_dir,))
            tree, submodules = self._clone_dirs.tree, self._submodules
            return await stage(self._git, layout, tree, submodules, links=links, confining=confining)

    async def head(self) -> tuple[str, str]:
        """(commit, branch) of the agent's HEAD; both empty where its repository is broken."""
        if plain := await asyncio.to_thread(_plain_head, self._clone_dirs.tree):
            return plain
        answer = await self.run(
            Command(
                argv=("git", "rev-parse", "HEAD", "--symbolic-full-name", "HEAD"),
                timeout_seconds=_HEAD_TIMEOUT_SECONDS,
                output_limit=4096,
                light=True,
            )
        )
        lines = answer.stdout.text().split("\n")
        if not answer.ok or not COMMIT_ID.fullmatch(lines[0]):
            return "", ""
        name = lines[1] if len(lines) > 1 else ""
        return lines[0], name.removeprefix("refs/heads/") if name.startswith("refs/heads/") else ""


def _plain_head(tree: Path) -> tuple[str, str] | None:
    """(commit, branch) of HEAD, if two plain files have them; None where git has to be asked. Blocking."""
    with suppress(OSError):
        commit, name = read_file(tree, ".git", "HEAD"), ""
        if branch := _ON_BRANCH.fullmatch(commit):
            name = branch[1]
            commit = read_file(tree, ".git", "refs", "heads", *name.split("/"))
        if COMMIT_ID.fullmatch(commit[:-1]) and commit.endswith("\n"):
            return commit[:-1], name
    return None


def _forget_staged(clone_dirs: CloneDirs) -> None:
    """Delete staged objects that the index no longer references."""
    git_dir = clone_dirs.git_dir
    for directory in (git_dir / "objects").iterdir():
        if directory.name != "info":
            remove_tree(directory)
    (git_dir / "objects/pack").mkdir()
    remove_tree(git_dir / "refs/fleet")
