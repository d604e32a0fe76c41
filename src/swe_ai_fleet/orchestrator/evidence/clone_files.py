"""The files of a clone as evidence looks at them: listed once, read within bounds, nothing of them trusted."""

from __future__ import annotations

from collections.abc import Iterable

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree

_MAX_FILE_BYTES = 1024 * 1024
_MAX_LISTING_BYTES = 8 * 1024 * 1024
_LISTING_SECONDS = 30.0


class CloneFiles:
    """One clone's files."""

    def __init__(self, clone: Clone) -> None:
        self.clone = clone
        self.tree = Tree(clone.root, clone.mount)
        self._paths: frozenset[str] | None = None

    async def paths(self) -> frozenset[str]:
        """The tracked paths, those of an applied patch among them; none where git cannot list them."""
        if self._paths is None:
            command = Command(
                argv=("git", "-c", "core.fsmonitor=false", "ls-files", "-z"),
                light=True,
                timeout_seconds=_LISTING_SECONDS,
                output_limit=_MAX_LISTING_BYTES,
            )
            result = await self.clone.run(command)
            listing = (result.stdout.head + result.stdout.tail).decode("utf-8", "replace") if result.ok else ""
            self._paths = frozenset(path for path in listing.split("\0") if path)
        return self._paths

    def text(self, path: str) -> str:
        """A file's text; empty where it cannot be read, is too large, or holds no text."""
        try:
            data = self.tree.read(path, limit=_MAX_FILE_BYTES).data
        except (ToolFailure, OSError):
            return ""
        return "" if b"\0" in data else data.decode("utf-8", "replace")

    def links(self, paths: Iterable[str]) -> frozenset[str]:
        """Which of these are symbolic links."""
        return frozenset(path for path in paths if (self.clone.root / path).is_symlink())

    def has(self, path: str) -> bool:
        """Whether something lies at a path."""
        try:
            self.tree.find(path)
        except ToolFailure:
            return False
        return True
