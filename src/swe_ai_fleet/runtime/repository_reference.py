"""A repository as people name it, as the contract wants it named."""

from __future__ import annotations

import re
from pathlib import Path

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import UncommittedChanges

# host:path as scp and git write it; a single letter before the colon is a drive, not a host.
_SCP_LIKE = re.compile(r"(?:[\w.-]+@)?[\w.-]{2,}:(?!//).+")
_UNCOMMITTED = {
    UncommittedChanges.REFUSE: pb.UNCOMMITTED_CHANGES_UNSPECIFIED,
    UncommittedChanges.INCLUDE: pb.UNCOMMITTED_CHANGES_INCLUDE,
    UncommittedChanges.IGNORE: pb.UNCOMMITTED_CHANGES_IGNORE,
}


def repository_reference(
    location: str, *, ref: str = "", uncommitted: UncommittedChanges = UncommittedChanges.REFUSE
) -> pb.RepoRef:
    """The repository that `location` names: a directory of this machine, or a URL. Raises InvalidRequest."""
    directory = _directory(location)
    if directory is not None:
        return pb.RepoRef(path=str(directory), ref=ref, uncommitted=_UNCOMMITTED[uncommitted])
    if is_url(location):
        return pb.RepoRef(url=location, ref=ref)
    raise InvalidRequest(
        f"{location[:200]!r} is neither a directory nor a URL",
        field="repo",
        hint="give a git repository's directory, or a URL that git clones",
    )


def _directory(location: str) -> Path | None:
    try:
        directory = Path(location).expanduser()
        return directory.resolve() if location and directory.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        # Too long a name, the home of somebody who is not there, a NUL: names of no directory.
        return None


def is_url(location: str) -> bool:
    """Whether git would reach for another host to clone this."""
    return "://" in location or _SCP_LIKE.fullmatch(location) is not None
