"""Stages an untrusted work tree in a private index: every file unchanged, without running filters or hooks.

The size of a commit's checkout is checked before it becomes an index or files.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import DIRECTORY, open_directory
from swe_ai_fleet.adapters.git_workspace.git import Git, GitFailed, GitLayout, GitResult
from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted
from swe_ai_fleet.sandbox.processes import started_group
from swe_ai_fleet.sandbox.runner import LAUNCHER_VARIABLES

MAX_NAME_BYTES = 64 * 1024 * 1024
_LISTING_SECONDS = 900.0
_HINT = "let .gitignore name generated files"
_GITLINK = b"160000 "
_FIRST_LOOK_SECONDS = 1.0
# Every directory is opened from the top, so a chain of them takes quadratic time.
MAX_OPENED = 250_000
# Names that git opens whatever their type, with everything in a nested repository, whose HEAD it reads. Links count as
# their targets.
_ENDLESS = (
    *("find", ".", "-path", "./.git", "-prune", "-o"),
    *("(", "-name", ".gitattributes", "-o", "-name", ".gitignore", "-o", "-name", ".gitmodules"),
    *("-o", "-path", "*/.git/*", ")"),
    *("(", "-xtype", "p", "-o", "-xtype", "c", "-o", "-xtype", "b", ")", "-print0", "-quit"),
)


async def check_size(
    git: Git, layout: GitLayout, commit: str, *, most_bytes: int | None = None, field: str = ""
) -> int:
    """The bytes of a commit's files. Raises ResourceExhausted where they are more than a clone may have.

    `most_bytes` may be less than the disk limit of a workspace (None). Few small trees can have any number of files,
    and few bytes any size. Raises PreconditionFailed where the repository lacks one of the files, GitFailed
    where it cannot be read.
    """
    try:
        listed = await git.run(
            *("ls-tree", "-r", "-l", "-z", "--full-tree", commit),
            layout=layout,
            timeout_seconds=_LISTING_SECONDS,
            output_limit=MAX_NAME_BYTES,
        )
    except GitFailed:
        raise
    except ResourceExhausted as error:
        raise ResourceExhausted(
            f"commit {commit[:12]} has too many files: their names are more than {MAX_NAME_BYTES} bytes",
            field=field,
            hint=_HINT,
        ) from error
    files_bytes, missing = await asyncio.to_thread(_files, listed.stdout)
    if missing:
        raise PreconditionFailed(
            f"commit {commit[:12]} is incomplete: the repository has no contents of {', '.join(missing[:3])}",
            field=field,
            hint="in a partial clone, a checkout of the commit fetches what is missing",
        )
    allowed = git.max_disk_bytes if most_bytes is None else min(most_bytes, git.max_disk_bytes)
    if files_bytes > allowed:
        raise ResourceExhausted(
            f"the files of commit {commit[:12]} have more than {allowed} bytes",
            field=field,
            hint=_HINT if allowed < git.max_disk_bytes else f"{_HINT}; the operator can raise FLEET_MAX_DISK_BYTES",
        )
    return files_bytes


def _files(listing: bytes) -> tuple[int, list[str]]:
    """The bytes of all files in the output of `ls-tree -l`, and the files whose content the repository lacks."""
    total, missing = 0, list[str]()
    for entry in listing.split(b"\0"):
        attributes, _, name = entry.partition(b"\t")
        words = attributes.split()
        if len(words) == 4 and words[3].isdigit():
            total += int(words[3])
        elif len(words) == 4 and words[3] == b"BAD":
            missing.append(name.decode("utf-8", "replace"))
    return total, missing


async def run_on_tree(
    git: Git,
    *args: str,
    layout: GitLayout,
    tree: Path,
    stdin: bytes = b"",
    expect: Sequence[int] = (0,),
    confining: Sequence[str] = (),
) -> GitResult:
    """Run git in an untrusted work tree, whose pipes and devices it could read for ever.

    If git takes long, the tree is searched for them. Raises PreconditionFailed naming one, and as `Git.run` does.
    """
    running = asyncio.ensure_future(
        git.run(*args, layout=layout, cwd=tree, stdin=stdin, expect=expect, confining=confining)
    )
    wait = _FIRST_LOOK_SECONDS
    try:
        while not (await asyncio.wait([running], timeout=wait))[0]:
            if name := await _endless(tree, confining):
                raise PreconditionFailed(
                    f"the work tree cannot be read: {name[:500]!r} is a pipe or a device", hint="remove it"
                )
            wait *= 2
        return running.result()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            # A killed git leaves its lock.
            (layout.index or layout.git_dir / "index").with_name("index.lock").unlink(missing_ok=True)


async def _endless(tree: Path, confining: Sequence[str]) -> str:
    """A pipe or device in a work tree that git may open, empty without one; confined like git."""
    process = await started_group(
        *confining,
        *_ENDLESS,
        cwd=tree,
        env=dict(LAUNCHER_VARIABLES),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return os.fsdecode(output.rstrip(b"\0").removeprefix(b"./"))


async def gitlinks(git: Git, layout: GitLayout) -> frozenset[bytes]:
    """The submodules in the index, as paths."""
    listing = await git.run("ls-files", "--stage", "-z", layout=layout)
    return frozenset(entry.split(b"\t", 1)[1] for entry in listing.stdout.split(b"\0") if entry.startswith(_GITLINK))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChanges:
    """The changes of an index since a commit: whether there are any, the changed submodules, and, if requested, the
    counts of `--numstat -z`."""

    some: bool
    links: frozenset[bytes]
    counts: bytes


async def changes(git: Git, layout: GitLayout, commit: str, *, counted: bool) -> StagedChanges:
    """The changes of the index since a commit, independent of the tree (and its attributes). Counting reads files."""
    form = ("--raw", *(("--numstat",) if counted else ()), "-z", "--no-renames", "--ignore-submodules=none")
    listing = await git.run("diff", "--cached", commit, *form, layout=replace(layout, work_tree=None))
    counts, links = list[bytes](), set[bytes]()
    entries = iter(listing.stdout.split(b"\0"))
    for entry in entries:
        if not entry.startswith(b":"):
            counts.append(entry)
            continue
        path = next(entries)
        if entry.split(b" ", 2)[1] + b" " == _GITLINK:
            links.add(path)
    return StagedChanges(some=bool(listing.stdout), links=frozenset(links), counts=b"\0".join(counts))


async def stage(
    git: Git,
    layout: GitLayout,
    tree: Path,
    submodules: frozenset[bytes],
    *,
    links: Callable[[], Awaitable[frozenset[bytes]]],
    confining: Sequence[str] = (),
) -> bool:
    """Update the layout's index to its work tree `tree`, untracked files included, ignored ones excluded.

    A repository inside the tree (an agent ran `git init`) is added file by file, without its `.git`: git itself would
    record only a commit id, and its content would be lost. `submodules` are those of the base: they are unchanged
    unless their directory is gone. `links` returns the changed submodules in the index; this returns whether the index
    is still the one that `links` saw. `confining` confines git to the tree. Raises PreconditionFailed where a file
    cannot be read, or where a pipe or device is in its place.
    """
    present = [path for path in submodules if _exists(tree, path)]
    # A nested repository without a commit makes git fail; other faults occur again below.
    with suppress(GitFailed):
        await _add(git, layout, tree, present, confining)
        strays = await links() - submodules
        if not strays:
            return True
        await _forget(git, layout, strays)
    roots, files = await asyncio.to_thread(_nested_repositories, tree, submodules)
    wanted: set[bytes] = set()
    if files:
        ignored = await run_on_tree(
            git,
            *("check-ignore", "-z", "--stdin"),
            layout=layout,
            tree=tree,
            stdin=b"\0".join(files),
            expect=(0, 1),
            confining=confining,
        )
        wanted = files - set(ignored.stdout.split(b"\0"))
    if wanted:
        names = b"\0".join(sorted(wanted))
        await run_on_tree(
            git,
            *("update-index", "-z", "--add", "--replace", "--stdin"),
            layout=layout,
            tree=tree,
            stdin=names,
            confining=confining,
        )
    # For git, nested repositories with files in the index are ordinary directories.
    empty = [root for root in roots if not any(name.startswith(root + b"/") for name in wanted)]
    try:
        await _add(git, layout, tree, [*present, *empty], confining)
    except GitFailed as error:
        raise PreconditionFailed(f"the work tree cannot be read: {error.message[:500]}") from error
    await _forget(git, layout, await gitlinks(git, layout) - submodules)
    return False


async def _add(git: Git, layout: GitLayout, tree: Path, left_alone: Iterable[bytes], confining: Sequence[str]) -> None:
    excluded = [f":(exclude,literal){os.fsdecode(path)}" for path in left_alone]
    await run_on_tree(git, "add", "--all", "--", ".", *excluded, layout=layout, tree=tree, confining=confining)


async def _forget(git: Git, layout: GitLayout, paths: Iterable[bytes]) -> None:
    if names := b"\0".join(paths):
        await git.run("update-index", "-z", "--force-remove", "--stdin", layout=layout, stdin=names)


def _exists(tree: Path, path: bytes) -> bool:
    return os.path.lexists(os.path.join(os.fsencode(tree), path))  # noqa: PTH118 - bytes paths


def _nested_repositories(tree: Path, submodules: frozenset[bytes]) -> tuple[set[bytes], set[bytes]]:
    """(their roots, the files in them), as paths relative to the tree. Raises ResourceExhausted.

    It uses descriptors, since a running process may replace a directory by a link meanwhile.
    """
    top = os.open(tree, DIRECTORY)
    roots: set[bytes] = set()
    files: set[bytes] = set()
    room, left = MAX_NAME_BYTES, MAX_OPENED
    pending = [(b"", False)]
    try:
        while pending:
            directory, inside = pending.pop()
            left -= directory.count(b"/") + 1
            if left < 0:
                raise ResourceExhausted("the work tree has too many directories within directories", hint="remove some")
            for name, mode in (entries := _entries(top, directory)).items():
                path = directory + b"/" + name if directory else name
                room -= len(path)
                if room < 0:
                    raise ResourceExhausted(
                        f"the work tree has more than {MAX_NAME_BYTES // 1024**2} MiB of names",
                        hint="let .gitignore name generated files",
                    )
                if name == b".git" or path in submodules:
                    continue
                is_inside = inside or bool(directory and b".git" in entries)
                if stat.S_ISDIR(mode):
                    pending.append((path, is_inside))
                elif is_inside and (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    files.add(path)
            if directory and b".git" in entries:
                roots.add(directory)
    finally:
        os.close(top)
    return roots, files


def _entries(top: int, directory: bytes) -> dict[bytes, int]:
    """The modes of a directory's entries; none if it cannot be read, which git reports itself if it matters."""
    opened = open_directory(top, os.fsdecode(directory).split("/") if directory else [], create=False)
    if opened is None:
        return {}
    try:
        with os.scandir(opened) as listing:
            return {os.fsencode(entry.name): entry.stat(follow_symlinks=False).st_mode for entry in listing}
    except OSError:
        return {}
    finally:
        os.close(opened)
