"""Git directories written by hand: the same as `git init` makes, without a process and without templates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.git import Git, Layout, quoted

IDENTITY_NAME = "SWE AI Fleet"
IDENTITY_EMAIL = "fleet@localhost"
WORK_BRANCH = "fleet/work"
# Always the same, so that the same tree on the same commit is the same commit again.
FIXED_IDENTITY = {
    f"GIT_{person}_{part}": text
    for person in ("AUTHOR", "COMMITTER")
    for part, text in (("NAME", IDENTITY_NAME), ("EMAIL", IDENTITY_EMAIL), ("DATE", "2000-01-01T00:00:00+00:00"))
}

# What tools leave behind when they run. A repository's own .gitignore can take any of it back in.
BY_PRODUCTS = (
    *("__pycache__/", "*.pyc", ".pytest_cache/", ".ruff_cache/", ".mypy_cache/", ".hypothesis/", ".coverage"),
    *("*.egg-info/", "node_modules/", ".venv/"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Where the objects of a commit are found. `shallow` holds the cut-off commits of a shallow repository."""

    objects: Path
    object_format: str = "sha1"
    shallow: bytes = b""


def write_git_dir(
    path: Path,
    *,
    head: str,
    history: History | None = None,
    object_format: str = "sha1",
    excludes: Iterable[str] = (),
    work_tree: bool = False,
) -> None:
    """Make `path` a git directory whose HEAD is `head` (a commit, or `ref: …`), reading the objects of `history`.

    With `work_tree` it is the `.git` of a clone: not bare, with an identity to commit under.
    """
    if history is not None:
        object_format = history.object_format
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        (path / name).mkdir(parents=True, exist_ok=True)
    (path / "HEAD").write_text(f"{head}\n")
    (path / "config").write_text(_config(object_format, work_tree=work_tree))
    if excludes:
        (path / "info/exclude").write_text("".join(f"{line}\n" for line in excludes))
    if history is not None:
        objects = str(history.objects)
        line = quoted(history.objects) if '"' in objects or "\\" in objects else objects
        (path / "objects/info/alternates").write_text(f"{line}\n")
        if history.shallow:
            (path / "shallow").write_bytes(history.shallow)


def format_of(commit: str) -> str:
    """The object format of the repository that a full commit id is of."""
    return "sha256" if len(commit) == 64 else "sha1"


def stored_history(git_dir: Path, commit: str) -> History:
    """A git directory of ours as the source of a commit's objects. Blocking."""
    shallow = git_dir / "shallow"
    return History(
        objects=git_dir / "objects",
        object_format=format_of(commit),
        shallow=shallow.read_bytes() if shallow.exists() else b"",
    )


async def begin_cache(path: Path, *, history: History | None = None, object_format: str = "sha1") -> None:
    """Make `path` a git directory without a branch, unless it is one already."""
    if not (path / "HEAD").exists():
        head = "ref: refs/heads/none"
        await asyncio.to_thread(write_git_dir, path, head=head, history=history, object_format=object_format)


def _config(object_format: str, *, work_tree: bool) -> str:
    lines = ["[core]"]
    lines.append(f"\trepositoryformatversion = {0 if object_format == 'sha1' else 1}")
    lines.append(f"\tbare = {'false' if work_tree else 'true'}")
    lines.append("\tlogallrefupdates = true" if work_tree else "\tlogallrefupdates = false")
    if work_tree:
        lines.append("\thooksPath = /dev/null")
        lines += ["[user]", f"\tname = {IDENTITY_NAME}", f"\temail = {IDENTITY_EMAIL}"]
        lines += ["[commit]", "\tgpgSign = false", "[advice]", "\tdetachedHead = false"]
    lines += ["[gc]", "\tauto = 0", "[maintenance]", "\tauto = false"]
    if object_format != "sha1":
        lines += ["[extensions]", f"\tobjectFormat = {object_format}"]
    return "\n".join(lines) + "\n"


async def dates_of(git: Git, commit: str, layout: Layout) -> dict[str, str]:
    """The variables that give a new commit the date of another one."""
    stamp = f"@{(await git.run('log', '-1', '--format=%ct', commit, layout=layout)).text()} +0000"
    return {"GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp}
