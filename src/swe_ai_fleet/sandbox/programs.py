"""The fleet's own code inside a sandbox, for programs of ours that work on what must not be worked on outside."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from swe_ai_fleet.domain.errors import PreconditionFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory of this host and where a sandbox shows it, read-only. Without a sandbox only `outside` exists."""

    outside: str
    inside: str


@cache
def code() -> Place:
    """The fleet's own package."""
    return Place(outside=str(Path(__file__).parents[1]), inside="/run/fleet/swe_ai_fleet")


def packages() -> Place:
    """The parsers, copied away from what else is installed beside them; nothing puts them on anybody's path.

    Raises PreconditionFailed where there is no directory of this user's own for the copy.
    """
    place = runtime_directory() / f"parsers-{_identity()}"
    if not place.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=".parsers-", dir=place.parent))
        for parser in _parsers():
            shutil.copytree(parser, draft / parser.name)
        try:
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft)  # another process was first
    return Place(outside=str(place), inside="/run/fleet/packages")


@cache
def _parsers() -> tuple[Path, ...]:
    """The directories of the parsers' packages, with their metadata, which has their versions in its name."""
    found = find_spec("tree_sitter")
    if found is None or found.origin is None:
        return ()
    return tuple(sorted(path for path in Path(found.origin).parents[1].glob("tree_sitter*") if path.is_dir()))


@cache
def _identity() -> str:
    return hashlib.sha256("\n".join(map(str, _parsers())).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def runtime_directory() -> Path:
    """A directory that only this user can enter, the same for all of its processes. Raises PreconditionFailed."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    parent = Path(runtime) if runtime else Path(tempfile.gettempdir(), f"fleet-{os.getuid()}")
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = parent.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PreconditionFailed(f"{parent} belongs to somebody else or is open to others", hint=f"remove {parent}")
    return parent
