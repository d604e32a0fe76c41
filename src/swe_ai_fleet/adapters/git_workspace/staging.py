"""A work tree of strangers taken into a private index: every file as it lies there, no program of theirs started."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.git import Git, GitFailed, Layout
from swe_ai_fleet.domain.errors import PreconditionFailed

_GITLINK = b"160000 "


async def gitlinks(git: Git, layout: Layout) -> frozenset[bytes]:
    """The submodules in the index, as paths."""
    listing = await git.run("ls-files", "--stage", "-z", layout=layout)
    return frozenset(entry.split(b"\t", 1)[1] for entry in listing.stdout.split(b"\0") if entry.startswith(_GITLINK))


async def stage(git: Git, layout: Layout, tree: Path, submodules: frozenset[bytes]) -> None:
    """Bring the index of the layout up to `tree`, its work tree, honouring .gitignore; untracked files included.

    A repository inside the tree (an agent ran `git init`) is taken file by file, without its `.git`: as the bare
    commit id that git would record, its content would be lost. `submodules` are those of the base: they stay as they
    are unless their directory is gone. Raises PreconditionFailed where a file cannot be read.
    """
    kept = [f":(exclude,literal){os.fsdecode(path)}" for path in submodules if _exists(tree, path)]
    add = ("add", "--all", "--", ".", *kept)
    try:
        await git.run(*add, layout=layout, cwd=tree)
        if not await gitlinks(git, layout) - submodules:
            return
    except GitFailed:
        # A nested repository without a commit makes git give up; anything else fails again below.
        pass
    files = await asyncio.to_thread(_files_in_nested_repositories, tree, submodules)
    if files:
        ignored = await git.run(
            "check-ignore", "-z", "--stdin", layout=layout, cwd=tree, stdin=b"\0".join(files), expect=(0, 1)
        )
        wanted = sorted(files - set(ignored.stdout.split(b"\0")))
        await git.run(
            *("update-index", "-z", "--add", "--replace", "--stdin"),
            layout=layout,
            cwd=tree,
            stdin=b"\0".join(wanted) or b"\0",
        )
    try:
        # With files of theirs in the index, nested repositories are directories like any other to git.
        await git.run(*add, layout=layout, cwd=tree)
        for stray in await gitlinks(git, layout) - submodules:
            await git.run("update-index", "--force-remove", "--", os.fsdecode(stray), layout=layout, cwd=tree)
    except GitFailed as error:
        raise PreconditionFailed(f"the work tree cannot be read: {error.message[:500]}") from error


def _exists(tree: Path, path: bytes) -> bool:
    return os.path.lexists(os.path.join(os.fsencode(tree), path))  # noqa: PTH118 - bytes paths


def _files_in_nested_repositories(tree: Path, submodules: frozenset[bytes]) -> set[bytes]:
    return set(_walk(os.fsencode(tree), submodules))


def _walk(root: bytes, submodules: frozenset[bytes]) -> Iterator[bytes]:
    pending = [(b"", False)]
    while pending:
        directory, inside = pending.pop()
        try:
            with os.scandir(os.path.join(root, directory)) as listing:  # noqa: PTH118 - bytes paths
                entries = list(listing)
        except OSError:
            continue  # unreadable: git says so itself when it matters
        inside = inside or (bool(directory) and any(entry.name == b".git" for entry in entries))
        for entry in entries:
            path = directory + b"/" + entry.name if directory else entry.name
            if entry.name == b".git" or path in submodules:
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                pending.append((path, inside))
            elif inside and (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                yield path
