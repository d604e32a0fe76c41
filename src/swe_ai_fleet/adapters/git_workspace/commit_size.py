"""How much a commit comes to when it is checked out, asked before anything is made of it: an index, or files."""

from __future__ import annotations

import asyncio

from swe_ai_fleet.adapters.git_workspace.git import Git, GitFailed, Layout
from swe_ai_fleet.domain.errors import ResourceExhausted

MAX_FILES_BYTES = 10 * 1024**3
MAX_NAME_BYTES = 64 * 1024 * 1024
_LISTING_SECONDS = 900.0
_HINT = "let .gitignore name generated files"


async def check_size(
    git: Git, layout: Layout, commit: str, *, most_bytes: int = MAX_FILES_BYTES, field: str = ""
) -> None:
    """Raise ResourceExhausted for a commit that is more than a clone may hold.

    Of a few small trees there can be any number of files, and of a few bytes any size. Raises GitFailed where it cannot
    be read.
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
    if await asyncio.to_thread(_files_bytes, listed.stdout) > most_bytes:
        raise ResourceExhausted(
            f"the files of commit {commit[:12]} have more than {most_bytes} bytes", field=field, hint=_HINT
        )


def _files_bytes(listing: bytes) -> int:
    """The bytes of all files in what `ls-tree -l` lists."""
    total = 0
    for entry in listing.split(b"\0"):
        words = entry.partition(b"\t")[0].split()
        if len(words) == 4 and words[3].isdigit():
            total += int(words[3])
    return total
