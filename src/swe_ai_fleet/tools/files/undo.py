"""What files were before the last changes of a tool, as far as memory allows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from swe_ai_fleet.tools.files.changes import Change, FileState

MAX_VERSIONS = 20
MAX_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A file as it was before a change, and the digest of what the change made of it (None: no file)."""

    path: str
    before: FileState | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoable:
    """One change that is undone as a whole: a moved file has two versions, any other one."""

    operation: str
    versions: tuple[Version, ...]

    @property
    def size(self) -> int:
        return sum(len(version.before.data) for version in self.versions if version.before)


class History:
    """The last changes, newest last; the oldest are forgotten once there are too many or they hold too much."""

    def __init__(self, *, max_versions: int = MAX_VERSIONS, max_bytes: int = MAX_BYTES) -> None:
        self._max_versions = max_versions
        self._max_bytes = max_bytes
        self._entries: list[Undoable] = []

    def record(self, operation: str, changes: Sequence[Change]) -> None:
        """Remember changes that are to be undone together."""
        versions = tuple(
            Version(path=change.path, before=change.before, after=digest(change.after)) for change in changes
        )
        self._entries.append(Undoable(operation=operation, versions=versions))
        while self._entries and self._too_much():
            self._entries.pop(0)

    def last(self, path: str) -> Undoable | None:
        """The last change of a file that is remembered."""
        for entry in reversed(self._entries):
            if any(version.path == path for version in entry.versions):
                return entry
        return None

    def forget(self, entry: Undoable) -> None:
        """Drop a change that has been undone."""
        self._entries.remove(entry)

    def _too_much(self) -> bool:
        versions = sum(len(entry.versions) for entry in self._entries)
        return versions > self._max_versions or sum(entry.size for entry in self._entries) > self._max_bytes


def digest(state: FileState | None) -> str | None:
    """The SHA-256 of a file's content, None where there is no file."""
    return hashlib.sha256(state.data).hexdigest() if state is not None else None
