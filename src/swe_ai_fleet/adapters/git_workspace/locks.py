"""Locks between the processes of one node."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from swe_ai_fleet.domain.errors import Unavailable

_FIRST_WAIT_SECONDS = 0.002
_LONGEST_WAIT_SECONDS = 0.1


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock file exclusively, or None where another process or task holds it.

    Closing the descriptor, or the end of the process, frees it.
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
        os.close(descriptor)  # its last holder removed the file while we waited: what we hold is nobody's lock


def _is_file_at(descriptor: int, path: Path) -> bool:
    held = os.fstat(descriptor)
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


@asynccontextmanager
async def locked(path: Path, *, timeout_seconds: float = 600.0) -> AsyncGenerator[None]:
    """Hold the lock file for the length of the context. Raises Unavailable when the time is up."""
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
