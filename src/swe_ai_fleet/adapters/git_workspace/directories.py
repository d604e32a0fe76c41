"""Directories that appear whole and disappear whole, whatever was put into them."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


async def finished(work: Awaitable[T]) -> T:
    """The work's result, waited for also when this task is cancelled meanwhile; the cancellation comes after it.

    What a thread still writes while the directory is being removed would stay.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


@asynccontextmanager
async def appearing(target: Path) -> AsyncGenerator[Path]:
    """A directory to fill, which becomes `target` at the end of the context; after a fault nothing is left.

    Whoever comes second (another process that made the same thing) yields to the first. What a killed process leaves
    is named `.new-*` beside the target.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f".new-{target.name[:48]}-{secrets.token_hex(4)}"
    draft.mkdir()
    try:
        yield draft
        _rename(draft, target)
    finally:
        await finished(asyncio.to_thread(remove_tree, draft))


def _rename(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def remove_tree(root: Path) -> None:
    """Remove a directory tree that strangers have written: locked directories, endless depth. Blocking.

    Only what lies below `root` is touched: links are removed, never followed. Raises OSError where something stays.
    """
    try:
        while os.path.lexists(root):
            # Two may remove it at once: what is missing then is a part of it.
            with suppress(FileNotFoundError):
                shutil.rmtree(root)
    except (OSError, RecursionError):
        _unlock(root)
        # rm walks without recursion, so that a directory nested a hundred thousand times does not stop it.
        subprocess.run(["rm", "-rf", "--", str(root)], check=False, stdin=subprocess.DEVNULL, capture_output=True)
        if root.exists():
            raise OSError(f"could not remove {root}") from None


def _unlock(root: Path) -> None:
    pending = [root]
    while pending:
        directory = pending.pop()
        try:
            if not stat.S_ISDIR(directory.lstat().st_mode):
                continue
            directory.chmod(0o700)
            with os.scandir(directory) as entries:
                pending += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # beyond what a path can name: rm gets there step by step
