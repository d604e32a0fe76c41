"""How much a commit comes to when it is checked out, asked before anything is made of it: an index, or files."""

from __future__ import annotations

import asyncio

from swe_ai_fleet.adapters.git_workspace.git import Git, GitFailed, Layout
from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted

MAX_NAME_BYTES = 64 * 1024 * 1024
_LISTING_SECONDS = 900.0
_HINT = "let .gitignore name generated files"


async def check_size(git: Git, layout: Layout, commit: str, *, most_bytes: int | None = None, field: str = "") -> int:
    """The bytes of a commit's files. Raises ResourceExhausted where they are more than a clone may hold.

    `most_bytes` may be less than the disk limit of a workspace (None). Of a few small trees there can be any number of
    files, and of a few bytes any size. Raises PreconditionFailed where the repository lacks a file of it, GitFailed
    where it cannot be read.
    """
    try:
        listed = await git.run(
            *("ls-tree", "-r", "-l", "-z", "--full-tree", commit),
            layout=layout,
            timeout_seconds=_LISTING_SECONDS,
            output_limit=MAX_NAME_BYTES,
        )
    except GitFailed:
        raise
    except ResourceExhausted as error:
        raise ResourceExhausted(
            f"commit {commit[:12]} has too many files: their names are more than {MAX_NAME_BYTES} bytes",
            field=field,
            hint=_HINT,
        ) from error
    files_bytes, missing = await asyncio.to_thread(_files, listed.stdout)
    if missing:
        raise PreconditionFailed(
            f"commit {commit[:12]} is incomplete: the repository has no contents of {', '.join(missing[:3])}",
            field=field,
            hint="in a partial clone, a checkout of the commit fetches what is missing",
        )
    allowed = git.max_disk_bytes if most_bytes is None else min(most_bytes, git.max_disk_bytes)
    if files_bytes > allowed:
        raise ResourceExhausted(
            f"the files of commit {commit[:12]} have more than {allowed} bytes",
            field=field,
            hint=_HINT if allowed < git.max_disk_bytes else f"{_HINT}; the operator can raise FLEET_MAX_DISK_BYTES",
        )
    return files_bytes


def _files(listing: bytes) -> tuple[int, list[str]]:
    """The bytes of all files in what `ls-tree -l` lists, and the files that the repository has no contents of."""
    total, missing = 0, list[str]()
    for entry in listing.split(b"\0"):
        attributes, _, name = entry.partition(b"\t")
        words = attributes.split()
        if len(words) == 4 and words[3].isdigit():
            total += int(words[3])
        elif len(words) == 4 and words[3] == b"BAD":
            missing.append(name.decode("utf-8", "replace"))
    return total, missing
