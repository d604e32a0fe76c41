"""Files that only their owner can read (keys, tokens, cards): whole or not there at all, and never a key twice."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; whoever reads has the old or the new one."""
    _draft(path, text).replace(path)


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


def kept_token(path: Path) -> str:
    """The token in a file, made at the first start; of several that start at once all get the same."""
    keep_private(path, lambda: secrets.token_urlsafe(32))
    return path.read_text().strip()


def _draft(path: Path, text: str) -> Path:
    """A file beside it with the text, of a name that nobody else takes."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        # A key that is there but empty after a loss of power would never be written again.
        os.fsync(file.fileno())
    return draft
