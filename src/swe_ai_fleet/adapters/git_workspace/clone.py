"""A clone: a work tree for one agent or one check, and what can be done with it."""

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
# So much of what was staged may lie about, superseded, until our git directory is begun anew.
_COMPACTED_BYTES = 64 * 1024 * 1024
_COMMITS_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneDirs:
    """The directories of one clone: the agent's work tree, and beside it the git directory that the agent never sees.

    `git_dir` is a git directory of our own with its own index: whatever is written into the tree's `.git` (config,
    hooks, filters) is nothing to the git that we run. `attached` is a tree of the caller's own, wherever it lies.
    `furnishing` is what stands in the tree beside the commit, from the environment at `root`.
    """

    directory: Path
    attached: Path | None = None
    root: Path = Path()
    furnishing: Furnishing = field(default_factory=Furnishing)

    @property
    def lock(self) -> Path:
        """The file that the clone's process holds."""
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
    """The largest diff and the largest checkpoint of a clone, in bytes; what a tenant may have on this node's disk.

    The last counts environments, seeds and caches of repositories; 0: no limit.
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
        """Whether its tree and its `.git` may be others' than those that we wrote."""
        return self._restored or self._workspace.used

    async def run(self, command: Command) -> CommandResult:
        """Run a command in the sandbox."""
        return await self._workspace.run(command)

    async def diff(self) -> Diff:
        """Everything that differs from the base commit, committed or not, untracked files included.

        Left out: what .gitignore names, by-products of tools (caches, `node_modules`), the content of submodules.
        Raises ResourceExhausted (a larger patch than allowed), PreconditionFailed (a file that cannot be read).
        """
        what, most = "the changes make a patch", self._bounds.patch_bytes
        async with self._changes(what, most, counted=True) as changed:
            if not changed.some:
                return Diff(patch=b"")
            against = ("diff", "--cached", self.base_commit)
            with bounded(what, most):
                # Of the index alone: whatever stands in the tree by now (attributes too) is not answer again.
                bare = replace(self._clone_dirs.layout, work_tree=None)
                patch = await self._git.run(*against, *PATCH_FORM, layout=bare, output_limit=most)
        return await asyncio.to_thread(diff_of, patch.stdout, changed.counts)

    async def apply(self, patch: bytes, *, branch: str = "") -> None:
        """Apply a patch to the tree and the index of a clone in which nothing has run yet.

        With a `branch` the tree is first brought back to the base commit, and the patch is committed to that branch,
        which is then checked out; a patch that is rejected leaves the branch at the base commit.

        Raises PatchRejected with git's reason (nothing has changed then), PreconditionFailed (a command has run: the
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
        """Check out a branch at the base commit, whose name and differences nothing of the repository hides."""
        name = f"refs/heads/{branch}"
        # What stands there goes before every .gitattributes.
        await asyncio.to_thread((layout.git_dir / "info/attributes").write_text, "* !diff\n")
        # To git a tag goes before a branch of its name.
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
        """HEAD and the tree as they stand, untracked files included.

        Left out: what `diff` leaves out, the index, and every branch but HEAD's. A HEAD that is broken counts as the
        base commit. Raises ResourceExhausted, PreconditionFailed.
        """
        head, branch = await self.head() if self._used else (self.base_commit, WORK_BRANCH)
        async with self._index:
            if self._staged_bytes > _COMPACTED_BYTES:
                # What is as the commit has it keeps what is known of its file, and is not read again.
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
        """Bring this clone, in which nothing has run yet, to a checkpoint of another clone of the same commit.

        Every change counts as not staged then. Raises PreconditionFailed.
        """
        if self._used:
            raise PreconditionFailed("a checkpoint can only be restored before anything has run in the clone")
        tree = self._clone_dirs.tree
        layout = GitLayout(git_dir=tree / ".git", work_tree=tree, alternates=(self._history.objects,))
        async with self._index:
            # What another clone had committed under a name of the environment's goes before it.
            await asyncio.to_thread(remove, tree, self._clone_dirs.furnishing.kept)
            await restore_checkpoint(self._git, layout, checkpoint, scratch=self._clone_dirs.git_dir)
            await self._furnish()
        # What HEAD is now, the clone's own git says.
        self._restored = True

    async def bundle(self, *, max_bytes: int) -> RepositoryBundle:
        """The base commit as a git bundle that stands on its own, made by our git. Raises ResourceExhausted."""
        async with self._index:
            return await bundled(
                self._git,
                self._clone_dirs.layout,
                self.base_commit,
                shallow=bool(self._history.shallow),
                max_bytes=max_bytes,
            )

    async def _make_room(self, patch: bytes) -> None:
        """Take away what the environment has put where a patch puts a file of its own."""
        kept = frozenset(self._clone_dirs.furnishing.kept)
        if kept:
            await asyncio.to_thread(remove, self._clone_dirs.tree, kept.intersection(await touched(self._git, patch)))

    async def _furnish(self) -> None:
        clone_dirs = self._clone_dirs
        await uninterrupted(asyncio.to_thread(furnish, clone_dirs.tree, clone_dirs.root, clone_dirs.furnishing))

    @asynccontextmanager
    async def _changes(self, what: str, most: int, *, counted: bool) -> AsyncGenerator[StagedChanges]:
        """What our own index, held and brought up to the tree, has against the base commit."""
        layout, seen = self._clone_dirs.layout, list[StagedChanges]()

        async def links() -> frozenset[bytes]:
            with bounded(what, most):
                seen.append(await changes(self._git, layout, self.base_commit, counted=counted))
            return seen[-1].links

        async with self._index:
            try:
                if not await self._stage(links):
                    await links()
                yield seen[-1]
            except ResourceExhausted:
                # What is too much stands in the index by now, and .gitignore says nothing of what an index has.
                await self._git.run("read-tree", self.base_commit, layout=layout)
                raise

    async def _stage(self, links: Callable[[], Awaitable[frozenset[bytes]]]) -> bool:
        """Bring our own index up to the tree."""
        layout = self._clone_dirs.layout
        if self._submodules is None:
            self._submodules = self._submodules_of.get(self.base_commit)
        if self._submodules is None:
            # Not yet brought up to a tree, the index is that of the commit, as in all of its clones.
            self._submodules = await gitlinks(self._git, layout)
            if len(self._submodules_of) >= _COMMITS_KEPT:
                self._submodules_of.clear()
            self._submodules_of[self.base_commit] = self._submodules
        async with self._workspace.frozen():
            confining: tuple[str, ...] = ()
            if self._used:
                # Not everybody can be stopped everywhere: who lives could lead git out of the tree while it reads.
                stores = await asyncio.to_thread(object_stores, self._history.objects)
                confining = await self._workspace.confining(readable=tuple(stores), writable=(layout.git_dir,))
            tree, submodules = self._clone_dirs.tree, self._submodules
            return await stage(self._git, layout, tree, submodules, links=links, confining=confining)

    async def head(self) -> tuple[str, str]:
        """(commit, branch) of HEAD as the agent left it; both empty where its repository is broken."""
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
    """What git would say of HEAD where two plain files tell it; None where git has to be answer. Blocking."""
    with suppress(OSError):
        commit, name = read_file(tree, ".git", "HEAD"), ""
        if branch := _ON_BRANCH.fullmatch(commit):
            name = branch[1]
            commit = read_file(tree, ".git", "refs", "heads", *name.split("/"))
        if COMMIT_ID.fullmatch(commit[:-1]) and commit.endswith("\n"):
            return commit[:-1], name
    return None


def _forget_staged(clone_dirs: CloneDirs) -> None:
    """Throw away what was staged, which the index no longer names: the tree supersedes it."""
    git_dir = clone_dirs.git_dir
    for directory in (git_dir / "objects").iterdir():
        if directory.name != "info":
            remove_tree(directory)
    (git_dir / "objects/pack").mkdir()
    remove_tree(git_dir / "refs/fleet")
