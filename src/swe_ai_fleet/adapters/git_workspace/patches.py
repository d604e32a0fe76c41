"""Patches as git writes and takes them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.git import Git, GitFailed, Layout
from swe_ai_fleet.domain.candidate import Diff
from swe_ai_fleet.domain.errors import PatchRejected

PATCH_FORM = (
    *("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=3"),
    *("--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=none"),
)
# Only headers begin a line like this: content is indented by a sign, binary content holds no blanks.
_HEADER = re.compile(rb"^diff --git a/([^\n]+)$", re.M)


async def apply_patch(
    git: Git, patch: bytes, where: str, *, layout: Layout, cwd: Path, variables: Mapping[str, str] | None = None
) -> None:
    """Apply a patch all or nothing; `where` is `--index` or `--cached`. Raises PatchRejected with git's reason."""
    try:
        await git.run(
            *("apply", where, "--whitespace=nowarn", "-p1", "-"),
            # A sandbox may have given the files to its own user since they were checked out.
            options=("-c", "core.checkStat=minimal"),
            layout=layout,
            cwd=cwd,
            stdin=patch,
            variables=variables,
        )
    except GitFailed as error:
        raise PatchRejected(error.message[:2000]) from error


async def touched(git: Git, patch: bytes) -> frozenset[str]:
    """The files that a patch changes or makes; none for one that git cannot read."""
    counted = await git.run("apply", "--numstat", "-z", "-p1", "-", stdin=patch, cwd=Path("/"), expect=(0, 1, 128))
    names = (entry.split(b"\t", 2) for entry in counted.stdout.split(b"\0"))
    return frozenset(os.fsdecode(parts[2]) for parts in names if len(parts) == 3)


def diff_of(patch: bytes, counts: bytes) -> Diff:
    """A patch of git's own beside what `--numstat -z` said of it."""
    files: list[str] = []
    insertions = deletions = 0
    for entry in filter(None, counts.split(b"\0")):
        added, removed, name = entry.split(b"\t", 2)
        files.append(name.decode("utf-8", "backslashreplace"))
        insertions += int(added) if added != b"-" else 0
        deletions += int(removed) if removed != b"-" else 0
    return Diff(patch=readable(patch), files=tuple(files), insertions=insertions, deletions=deletions)


def readable(patch: bytes) -> bytes:
    """A patch of git's own, in a form that git can read back whatever its files are called."""
    return _HEADER.sub(_unambiguous, patch)


def _unambiguous(header: re.Match[bytes]) -> bytes:
    """A patch's header line with both names quoted where a name holds a blank.

    git writes them bare, and then cannot read them back if no other line names the file (`a /b`, empty or only its
    mode changed).
    """
    names = header[1]
    name = names[: (len(names) - 3) // 2]
    if b" " not in name or names != name + b" b/" + name:
        return header[0]
    return b'diff --git "a/' + name + b'" "b/' + name + b'"'
