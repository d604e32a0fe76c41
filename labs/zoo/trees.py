"""Versions of a repository: commits and patches made by editing a work tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.testing.repositories import git

Edit = Callable[[Path], object]
"""Changes the files below a directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """Makes versions of `repository` in a work tree below `scratch`; one at a time."""

    repository: Path
    scratch: Path

    def branch(self, name: str, base: str, change: Edit) -> None:
        """A branch of the repository with one more commit."""
        tree = self._changed(base, change)
        git(tree, "commit", "--quiet", "--no-verify", "--message", "Change")
        git(self.repository, "branch", name, git(tree, "rev-parse", "HEAD"))

    def diff(self, base: str, change: Edit) -> bytes:
        """A change as a patch; empty where nothing changes."""
        path = self.scratch / "change.patch"
        git(self._changed(base, change), "diff", "--cached", "--binary", f"--output={path}")
        return path.read_bytes()

    def _changed(self, base: str, change: Edit) -> Path:
        tree = self.scratch / "tree"
        if not tree.exists():
            git(self.repository, "worktree", "add", "--quiet", "--detach", str(tree), "main")
        git(tree, "checkout", "--quiet", "--force", "--detach", base)
        git(tree, "clean", "--quiet", "-dxff")
        change(tree)
        git(tree, "add", "--all", "--force")
        return tree


def text_of(path: Path) -> str:
    """A file's text with its line ends as they are."""
    return path.read_bytes().decode()


def written(name: str, text: str) -> Edit:
    """The edit that gives a file this text."""
    return lambda root: (root / name).write_bytes(text.encode())
