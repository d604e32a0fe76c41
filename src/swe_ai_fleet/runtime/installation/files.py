"""Files and directories of an installation, which are its owner's alone."""

from __future__ import annotations

import stat
from pathlib import Path

from swe_ai_fleet.runtime.private_files import write_private

PRIVATE_DIRECTORY = 0o700


def make_directory(path: Path) -> None:
    """A directory that only its owner can look into; one that is there is left as it is."""
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)


def update_private(path: Path, text: str) -> bool:
    """Write a file that only its owner can read; False where it holds that already."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    write_private(path, text)
    return True


def others_may_read(path: Path) -> bool:
    """Whether somebody beside the owner may read a file."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
