"""Git bundles: commits on their way to where they are not known yet."""

from __future__ import annotations

import re
from dataclasses import dataclass

from swe_ai_fleet.adapters.git_workspace.git import Git, GitExhausted, GitFailed, Layout
from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted

MAX_BUNDLE_BYTES = 256 * 1024 * 1024
_PACK_TIMEOUT_SECONDS = 1800.0
_HEADER_BYTES = 64 * 1024
_SIGNATURE = re.compile(rb"# v[23] git bundle")
_PREREQUISITE = re.compile(rb"-([0-9a-f]{40}(?:[0-9a-f]{24})?)(?: .*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleHeader:
    """What a bundle says of itself: the commits it builds on, and where its pack begins."""

    prerequisites: tuple[str, ...]
    pack_at: int


def read_header(data: bytes) -> BundleHeader:
    """The header of a bundle (git's `bundle-format`). Raises PreconditionFailed where it is none."""
    beginning, blank, _ = data[:_HEADER_BYTES].partition(b"\n\n")
    signature, *lines = beginning.split(b"\n")
    if not blank or not _SIGNATURE.fullmatch(signature):
        raise PreconditionFailed("this is no git bundle")
    found = [match[1].decode() for line in lines if (match := _PREREQUISITE.fullmatch(line))]
    return BundleHeader(prerequisites=tuple(found), pack_at=len(beginning) + 2)


async def make_bundle(git: Git, layout: Layout, ref: str, since: str) -> bytes:
    """A bundle of a ref with what it adds to `since`; empty where that is nothing.

    Raises ResourceExhausted where it is larger than `MAX_BUNDLE_BYTES`.
    """
    added = await git.run("rev-list", "--count", "--max-count=1", ref, f"^{since}", layout=layout)
    if added.text() == "0":
        return b""
    try:
        made = await git.run(
            *("bundle", "create", "--quiet", "-", ref, f"^{since}"),
            layout=layout,
            timeout_seconds=_PACK_TIMEOUT_SECONDS,
            output_limit=MAX_BUNDLE_BYTES,
        )
    except GitExhausted:
        raise
    except ResourceExhausted as error:
        raise ResourceExhausted(
            f"the changes make a bundle of more than {MAX_BUNDLE_BYTES} bytes",
            hint="let .gitignore name generated files",
        ) from error
    return made.stdout


async def unpack(git: Git, layout: Layout, data: bytes, commit: str) -> None:
    """Take a bundle's objects into a repository that has its prerequisites; `commit` is whole there afterwards.

    Raises PreconditionFailed where it is broken, or does not have that commit.
    """
    header = read_header(data)
    try:
        await git.run(
            *("index-pack", "--stdin", "--fix-thin", f"--max-input-size={MAX_BUNDLE_BYTES}"),
            layout=layout,
            stdin=data[header.pack_at :],
            timeout_seconds=_PACK_TIMEOUT_SECONDS,
        )
        # Everything it stands on must be there: a commit alone proves nothing about its trees.
        without = [f"^{name}" for name in header.prerequisites]
        await git.run("rev-list", "--objects", "--quiet", commit, *without, layout=layout)
    except GitFailed as error:
        raise PreconditionFailed(f"the bundle of {commit[:12]} is broken: {error.message[:500]}") from error
