"""Temporary git repositories for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from git import Actor, Repo

_AUTHOR = Actor("Test Author", "author@example.org")


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
    Repo.init(path, initial_branch=branch).close()
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
    with Repo(path) as repository:
        repository.git.add("--all")
        return repository.index.commit(message, author=_AUTHOR, committer=_AUTHOR).hexsha


def git(path: Path, *args: str, stdin: bytes = b"") -> str:
    """What a git command says in a repository, with an identity to commit under. Raises CalledProcessError."""
    identity = ("-c", "user.name=Test Author", "-c", "user.email=author@example.org")
    done = subprocess.run(["git", *identity, *args], cwd=path, input=stdin, check=True, capture_output=True)
    return done.stdout.decode("utf-8", "surrogateescape").strip()
