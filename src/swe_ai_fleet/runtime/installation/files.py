"""Files of an installation: private, written whole or not at all, and never a key twice."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

PRIVATE = 0o600
PRIVATE_DIRECTORY = 0o700


def make_directory(path: Path) -> None:
    """A directory that only its owner can look into; one that is there is left as it is."""
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)


def write_private(path: Path, text: str) -> bool:
    """Write a file that only its owner can read; False where it holds that already."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    _draft(path, text).replace(path)
    return True


def keep_private(path: Path, make: Callable[[], str]) -> bool:
    """Write a file that is not there yet; False where there is one, which stays as it is."""
    if path.exists():
        return False
    draft = _draft(path, make())
    try:
        # Unlike a renaming, this does not take the place of what another process has just written.
        path.hardlink_to(draft)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def others_may_read(path: Path) -> bool:
    """Whether somebody beside the owner may read a file."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _draft(path: Path, text: str) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        # A key that is there but empty after a loss of power would never be written again.
        os.fsync(file.fileno())
    return draft
