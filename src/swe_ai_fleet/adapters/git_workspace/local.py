"""Repositories on this machine: read and snapshotted without changing them or trusting their configuration."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import vanishing
from swe_ai_fleet.adapters.git_workspace.git import Git, GitFailed, GitLayout
from swe_ai_fleet.adapters.git_workspace.git_dirs import (
    IDENTITY_EMAIL,
    IDENTITY_NAME,
    GitHistory,
    dates_of,
    write_git_dir,
)
from swe_ai_fleet.adapters.git_workspace.locations import LocationPolicy
from swe_ai_fleet.adapters.git_workspace.staging import gitlinks, run_on_tree, stage
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import RepoRef, UncommittedChanges
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_SHOWN_CHANGES = 5
# Git itself does not follow alternates any deeper.
_DEEPEST_STORE = 7
Confine = Callable[[tuple[Path, ...], tuple[Path, ...]], Awaitable[Sequence[str]]]
"""Returns the argv before a program that confines it to these readable and writable paths, and /usr."""
_UNMERGED = {"DD", "AU", "UD", "UA", "DU", "AA", "UU"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRepository:
    """The paths of a local repository's parts. `top` is its work tree (of a bare one, the git directory)."""

    top: Path
    git_dir: Path
    common_dir: Path
    objects: Path
    index: Path
    bare: bool
    object_format: str
    shallow: bytes = b""
    tenant: str = ""

    @property
    def history(self) -> GitHistory:
        return GitHistory(objects=self.objects, object_format=self.object_format, shallow=self.shallow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A resolved reference: a full commit id, and the branch if it names one.

    `snapshot_of` is set when the commit is a snapshot of uncommitted changes on that one.
    """

    commit: str
    branch: str = ""
    snapshot_of: str = ""


class LocalRepositories:
    """Reads local repositories. `excludes` is the user's global ignore file, if there is one.

    `confine` returns the argv that confines our git to a work tree, since a process that can write to the tree could
    lead git elsewhere by a link. None: git reads with the rights of this process.
    """

    def __init__(
        self, git: Git, policy: LocationPolicy, *, scratch: Path, excludes: Path | None, confine: Confine | None = None
    ) -> None:
        self._git = git
        self._policy = policy
        self._scratch = scratch
        self._excludes = excludes
        self._confine = confine

    async def find(self, path: Path, tenant: str = "") -> LocalRepository:
        """The repository that contains a tenant's path.

        Raises PreconditionFailed, InvalidRequest (a part is outside the allowed roots).
        """
        try:
            paths = await self._git.run(
                *("rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir", "--git-path", "objects"),
                *("--git-path", "index", "--is-bare-repository", "--show-object-format", "--git-path", "shallow"),
                *("--show-cdup",),
                cwd=path,
            )
        except GitFailed as error:
            hint = "use a directory of a repository, or create one there: git init, git add, git commit"
            raise PreconditionFailed(f"{path} is not a git repository", field="repo.path", hint=hint) from error
        git_dir, common, objects, index, bare, object_format, shallow, *up = paths.lines()
        is_bare = bare == "true"
        top = Path(git_dir) if is_bare or not up else (path / up[0]).resolve()
        if not is_bare and top.is_relative_to(Path(git_dir)):
            raise PreconditionFailed(f"{path} lies inside a git directory", field="repo.path")
        repository = LocalRepository(
            top=top,
            git_dir=Path(git_dir),
            common_dir=Path(common),
            objects=Path(objects),
            index=Path(index),
            bare=is_bare,
            object_format=object_format,
            shallow=_content(Path(shallow)),
            tenant=tenant,
        )
        parts = (repository.git_dir, repository.common_dir, repository.objects)
        if not self._policy.contains(repository.top.resolve(), tenant) or not await self.holds(parts, tenant):
            raise InvalidRequest(f"{path} has a part of its repository outside the allowed roots", field="repo.path")
        return repository

    async def holds(self, parts: Iterable[Path], tenant: str) -> bool:
        """Whether git directories, object stores and the targets of their links are where a tenant may name paths."""
        return await asyncio.to_thread(_stays_within, parts, lambda path: self._policy.contains(path, tenant))

    async def resolve(self, repository: LocalRepository, repo: RepoRef, objects: Path) -> Resolved:
        """The commit of a reference; included uncommitted changes become a commit in `objects`.

        Raises InvalidRequest, PreconditionFailed with `field`.
        """
        name = repo.commit or repo.ref or "HEAD"
        field = "repo.commit" if repo.commit else "repo.ref"
        questions = ["HEAD^{commit}", f"{name}^{{commit}}"]
        answers = await self._ask(repository, questions)
        head, commit = answers
        if commit is None:
            if head is None and name == "HEAD":
                raise PreconditionFailed("the repository has no commit yet", field="repo", hint="make a first commit")
            raise InvalidRequest(f"{name[:128]!r} is not a commit of the repository", field=field)
        branch = "" if repo.commit else await self._branch(repository, name)
        if repository.bare or repo.uncommitted is UncommittedChanges.IGNORE:
            return Resolved(commit=commit, branch=branch)
        if commit != head:
            if repo.uncommitted is UncommittedChanges.INCLUDE:
                raise PreconditionFailed(
                    f"the uncommitted changes belong to HEAD, not to {name[:128]!r}",
                    field=field,
                    hint="leave the ref empty or use --ignore-dirty",
                )
            return Resolved(commit=commit, branch=branch)
        return await self._with_changes(repository, repo, Resolved(commit=commit, branch=branch), objects)

    async def remote_url(self, repository: LocalRepository) -> str:
        """The URL of its remote `origin`, empty without one."""
        answer = await self._git.run(
            *("config", "--file", str(repository.common_dir / "config"), "--no-includes", "--get", "remote.origin.url"),
            expect=(0, 1, 3, 128),
        )
        return answer.text() if answer.code == 0 else ""

    async def _ask(self, repository: LocalRepository, questions: list[str]) -> list[str | None]:
        if any("\n" in question for question in questions):
            raise InvalidRequest("a reference must not contain a line break", field="repo.ref")
        answers = await self._git.run(
            *("cat-file", "--batch-check=%(objectname) %(objecttype)"),
            layout=GitLayout(git_dir=repository.git_dir),
            stdin=os.fsencode("".join(f"{question}\n" for question in questions)),
        )
        objects = [line.rsplit(" ", 1) for line in answers.lines()]
        return [name if kind in ("commit", "tree") else None for name, kind in objects]

    async def _branch(self, repository: LocalRepository, ref: str) -> str:
        if ref == "HEAD":
            head = os.fsdecode(_content(repository.git_dir / "HEAD")).strip()
            if head.startswith("ref: refs/heads/") and not head.endswith("/.invalid"):
                return head.removeprefix("ref: refs/heads/")
        named = await self._git.run(
            *("rev-parse", "--quiet", "--verify", "--symbolic-full-name", "--end-of-options", ref),
            layout=GitLayout(git_dir=repository.git_dir),
            expect=(0, 1, 128),
        )
        name = next((line for line in named.lines() if line.startswith("refs/heads/")), "")
        return name.removeprefix("refs/heads/")

    async def _with_changes(
        self, repository: LocalRepository, repo: RepoRef, resolved: Resolved, objects: Path
    ) -> Resolved:
        async with self._private(repository, resolved.commit, objects) as layout:
            confining = await self._confined(repository, layout)
            changes = await self._changes(layout, repository.top, confining)
            if not changes:
                return resolved
            if repo.uncommitted is UncommittedChanges.REFUSE:
                listed = ", ".join(name for _, name in changes[:_SHOWN_CHANGES])
                more = f" and {len(changes) - _SHOWN_CHANGES} more" if len(changes) > _SHOWN_CHANGES else ""
                raise PreconditionFailed(
                    f"the repository has uncommitted changes: {listed}{more}",
                    field="repo.path",
                    hint="commit them, or choose --include-dirty or --ignore-dirty",
                )
            if any(state in _UNMERGED for state, _ in changes):
                raise PreconditionFailed(
                    "a merge with conflicts is in progress", field="repo.path", hint="finish it or use --ignore-dirty"
                )
            links = partial(gitlinks, self._git, layout)
            await stage(self._git, layout, repository.top, await links(), links=links, confining=confining)
            commit = await self._commit(layout, resolved.commit)
        return Resolved(commit=commit, branch=resolved.branch, snapshot_of=resolved.commit)

    @asynccontextmanager
    async def _private(self, repository: LocalRepository, head: str, objects: Path) -> AsyncGenerator[GitLayout]:
        # Our own git directory, so that the repository cannot configure filters or a file system monitor, with a copy
        # of the repository's index.
        async with vanishing(self._scratch) as private:
            await uninterrupted(asyncio.to_thread(_write_private, private, repository, head, self._excludes))
            layout = GitLayout(
                git_dir=private,
                work_tree=repository.top,
                index=private / "index",
                objects=objects,
                alternates=(repository.objects,),
            )
            if not (private / "index").exists():
                await self._git.run("read-tree", head, layout=layout)
            yield layout

    async def _confined(self, repository: LocalRepository, layout: GitLayout) -> Sequence[str]:
        if self._confine is None:
            return ()
        stores = await asyncio.to_thread(object_stores, repository.objects)
        # The git directories are for submodules, whose commits git reads.
        readable = (repository.top, repository.git_dir, repository.common_dir, *stores)
        writable = (layout.git_dir, *([layout.objects] if layout.objects else []))
        return await self._confine(readable, writable)

    async def _changes(self, layout: GitLayout, tree: Path, confining: Sequence[str]) -> list[tuple[str, str]]:
        listing = await run_on_tree(
            self._git,
            *("status", "--porcelain=v1", "-z", "--no-renames", "--ignore-submodules=dirty"),
            layout=layout,
            tree=tree,
            confining=confining,
        )
        lines = os.fsdecode(listing.stdout).split("\0")
        return [(line[:2], line[3:]) for line in lines if line]

    async def _commit(self, layout: GitLayout, parent: str) -> str:
        tree = (await self._git.run("write-tree", layout=layout)).text()
        return (
            await self._git.run(
                *("commit-tree", tree, "-p", parent),
                layout=layout,
                stdin=b"Snapshot of uncommitted changes\n",
                # With the parent's date the same changes give the same commit.
                variables=identity(IDENTITY_NAME, IDENTITY_EMAIL) | await dates_of(self._git, parent, layout),
            )
        ).text()


def identity(name: str, email: str) -> dict[str, str]:
    """The variables for commits under a name."""
    parts = {"NAME": name, "EMAIL": email}
    return {f"GIT_{person}_{part}": text for person in ("AUTHOR", "COMMITTER") for part, text in parts.items()}


def _write_private(private: Path, repository: LocalRepository, head: str, own_excludes: Path | None) -> None:
    write_git_dir(private, head=head, history=repository.history, work_tree=True)
    # The user's global ignore file first: the repository's lines come later and take precedence, as for the user.
    sources = [path for path in (own_excludes, repository.common_dir / "info/exclude") if path and path.is_file()]
    (private / "info/exclude").write_bytes(b"\n".join(path.read_bytes() for path in sources))
    if repository.index.is_file():
        # With its modification time, since git trusts an entry only if the file is older than the index.
        shutil.copy2(repository.index, private / "index")


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def object_stores(objects: Path, depth: int = _DEEPEST_STORE) -> list[Path]:
    """An object directory and its alternates, recursively. Blocking.

    Raises InvalidRequest for quoted entries, which git interprets depending on the entry before.
    """
    stores = [objects]
    alternates = objects / "info/alternates"
    if not depth or not alternates.is_file():
        return stores
    for line in alternates.read_bytes().split(b"\n"):
        if line.startswith(b'"'):
            raise InvalidRequest("the repository borrows objects from a quoted path", field="repo.path")
        if line and not line.startswith(b"#"):
            path = Path(os.path.realpath(objects), os.fsdecode(line))
            normalised = Path(os.path.normpath(path))
            if normalised.resolve() != path.resolve():
                # After a link `..` is ambiguous: its meaning depends on git's version.
                raise InvalidRequest("the repository borrows objects from an ambiguous path", field="repo.path")
            stores += object_stores(normalised, depth - 1)
    return stores


def _stays_within(parts: Iterable[Path], contains: Callable[[Path], bool]) -> bool:
    """Whether directories, their alternates and the targets of their links are contained. Blocking.

    A pipe is not allowed, since opening it may block for ever.
    """
    pending = [store.resolve() for part in parts for store in object_stores(part)]
    visited = set[Path]()
    while pending:
        directory = pending.pop()
        if directory in visited or not directory.exists():
            continue
        visited.add(directory)
        if not contains(directory):
            return False
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_symlink():
                    target = Path(entry.path).resolve()
                    if not contains(target):
                        return False
                    pending += [target] if target.is_dir() else []
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode):
                    return False
    return True


def user_excludes(environ: Mapping[str, str]) -> Path | None:
    """The user's global ignore file at its default path, which applies to agents as well."""
    home = environ.get("HOME", "")
    base = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    return Path(base, "git/ignore") if base else None
