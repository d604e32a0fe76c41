"""Temporary git repositories for tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

# An identity to commit under; the machine's own hooks, keys and housekeeping are no part of a test.
_CONFIGURATION = (
    *("-c", "user.name=Test Author", "-c", "user.email=author@example.org"),
    *("-c", "commit.gpgSign=false", "-c", "maintenance.auto=false"),
)


def make_repository(
    path: Path,
    files: Mapping[str, str | bytes] | None = None,
    *,
    branch: str = "main",
    message: str = "First commit",
) -> Path:
    """A repository with one commit that holds the files (relative path -> content); without files it has no commit.

    Returns the resolved path.
    """
    path.mkdir(parents=True, exist_ok=True)
    git(path, "init", "--quiet", f"--initial-branch={branch}")
    if files:
        commit_files(path, files, message=message)
    return path.resolve()


def write_files(path: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a tree, uncommitted."""
    for name, content in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def commit_files(path: Path, files: Mapping[str, str | bytes], *, message: str = "Change") -> str:
    """Write files and commit everything that differs in the tree. Returns the full commit id."""
    write_files(path, files)
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--no-verify", "--allow-empty", "--cleanup=verbatim", "--message", message)
    return git(path, "rev-parse", "HEAD")


def git(path: Path, *args: str, stdin: bytes = b"") -> str:
    """What a git command says in a repository, with an identity to commit under. Raises CalledProcessError."""
    done = subprocess.run(["git", *_CONFIGURATION, *args], cwd=path, input=stdin, check=True, capture_output=True)
    return os.fsdecode(done.stdout).strip()
