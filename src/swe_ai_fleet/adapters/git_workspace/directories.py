"""Directories that are created and removed atomically; locks between the processes of a node."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import stat
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.sandbox.disk import remove_tree
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_FIRST_WAIT_SECONDS = 0.002
_LONGEST_WAIT_SECONDS = 0.1
T = TypeVar("T")
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_READ_BYTES = 64 * 1024


def try_lock(path: Path) -> int | None:
    """A descriptor that holds a lock file exclusively, or None if another process or task holds it.

    Closing the descriptor, or the end of the process, releases it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_file_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # its last holder removed the file meanwhile, so this is no longer the lock


def _is_file_at(descriptor: int, path: Path) -> bool:
    opened = os.fstat(descriptor)
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)


@asynccontextmanager
async def locked(path: Path, *, timeout_seconds: float = 600.0) -> AsyncGenerator[None]:
    """Hold a lock file until the context ends. Raises Unavailable when the time is up."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    wait = _FIRST_WAIT_SECONDS
    # Polling instead of a blocking flock in a thread: a cancelled wait must leave no thread behind.
    while (descriptor := try_lock(path)) is None:
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(f"another process has held {path.name} for more than {timeout_seconds:g} s")
        await asyncio.sleep(wait)
        wait = min(wait * 2, _LONGEST_WAIT_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


@asynccontextmanager
async def appearing(target: Path) -> AsyncGenerator[Path]:
    """A directory to fill, renamed to `target` at the end of the context, or removed after a fault.

    If another process has made the target first, that one stays. A killed process leaves a directory named `.new-*`
    beside the target.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f".new-{target.name[:48]}-{secrets.token_hex(4)}"
    draft.mkdir()
    try:
        yield draft
        _rename(draft, target)
    finally:
        await uninterrupted(asyncio.to_thread(remove_tree, draft))


@asynccontextmanager
async def vanishing(parent: Path) -> AsyncGenerator[Path]:
    """A new private directory, removed at the end of the context."""
    directory = parent / secrets.token_hex(8)
    directory.mkdir(mode=0o700, parents=True)
    try:
        yield directory
    finally:
        await uninterrupted(asyncio.to_thread(remove_tree, directory))


def write_file(path: Path, text: str) -> None:
    """Write a file to an untrusted directory, replacing a link that may be there instead of following it. Blocking."""
    clear_name(path)
    descriptor = os.open(path, NEW_FILE, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def read_file(root: Path, *parts: str) -> str:
    """The beginning of a regular file below an untrusted directory; links are not followed. Blocking.

    Raises OSError.
    """
    top = os.open(root, DIRECTORY)
    try:
        directory = open_directory(top, parts[:-1], create=False)
    finally:
        os.close(top)
    if directory is None:
        raise FileNotFoundError(f"no directory {'/'.join(parts[:-1])}")
    try:
        descriptor = os.open(parts[-1], _OLD_FILE, dir_fd=directory)
    finally:
        os.close(directory)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{'/'.join(parts)} is not a regular file")
        return file.read(_MAX_READ_BYTES).decode("utf-8", "replace")


def open_directory(top: int, parts: Sequence[str], *, create: bool) -> int | None:
    """A descriptor of a directory below another one, without following links; None if it does not exist."""
    current = os.dup(top)
    try:
        for part in parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=current)
            below = os.open(part, DIRECTORY, dir_fd=current)
            os.close(current)
            current = below
    except OSError:
        os.close(current)
        return None
    return current


def clear_name(path: Path) -> None:
    """Remove a file, directory or link of this name in an untrusted directory; a link's target stays. Blocking."""
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            remove_tree(path)
        else:
            path.unlink()


def _rename(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def copy_tree(root: Path, copy: Path) -> None:
    """Copy an untrusted directory, without the targets of its links. Blocking.

    The copy is no larger on disk: holes and hard links are preserved. Raises
    PreconditionFailed for files that cannot be read.
    """
    done = subprocess.run(
        ["cp", "--archive", "--sparse=always", "--reflink=auto", "--", str(root), str(copy)],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise PreconditionFailed(f"what a build left cannot be copied: {done.stderr[-500:]}", field="environment")
