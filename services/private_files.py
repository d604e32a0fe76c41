"""Files that only their owner can read: tokens and cards."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def kept_token(path: Path) -> str:
    """The token in a file, made at the first start; of several that start at once all get the same."""
    if not path.exists():
        draft = _draft(path, secrets.token_urlsafe(32))
        try:
            # Unlike a renaming, this does not take the place of what another process has just written.
            with suppress(FileExistsError):
                path.hardlink_to(draft)
        finally:
            draft.unlink()
    return path.read_text().strip()


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    _draft(path, text).replace(path)


def _draft(path: Path, text: str) -> Path:
    """A file beside it with the text, of a name that nobody else takes."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return draft
