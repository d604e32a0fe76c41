"""Requests of library callers: constraints as a plain mapping, a repository as a path or a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.command import CheckSpec
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_array, is_object, mapping
from swe_ai_fleet.domain.task import Constraints, UncommittedChanges
from swe_ai_fleet.domain.text import nearest

_LIMITS = frozenset(field.name for field in fields(Limits))
_OWN = frozenset(field.name for field in fields(Constraints)) - {"limits", "checks", "metadata"}
_KNOWN = _OWN | _LIMITS | {"checks", "metadata"}
# host:path as scp and git write it; a single letter before the colon is a drive, not a host.
_SCP_LIKE = re.compile(r"(?:[\w.-]+@)?[\w.-]{2,}:(?!//).+")
_UNCOMMITTED = {
    UncommittedChanges.REFUSE: pb.UNCOMMITTED_CHANGES_UNSPECIFIED,
    UncommittedChanges.INCLUDE: pb.UNCOMMITTED_CHANGES_INCLUDE,
    UncommittedChanges.IGNORE: pb.UNCOMMITTED_CHANGES_IGNORE,
}


def read_constraints(constraints: Mapping[str, object]) -> Constraints:
    """The constraints in a mapping. Raises InvalidRequest, for unknown names as well.

    Limits (`max_iterations`, `timeout_seconds`, …) are keys like the others; a check is a command or a mapping with
    `command` and, if wanted, `name`, `timeout_seconds`, `required`, `expected_exit_code`.
    """
    plain: dict[str, object] = {name: constraints[name] for name in _OWN & constraints.keys()}
    plain["limits"] = {name: constraints[name] for name in _LIMITS & constraints.keys()}
    checks = constraints.get("checks", ())
    if not is_array(checks):
        raise InvalidRequest("checks must be a list", field="constraints.checks")
    plain["checks"] = [_check(check) for check in checks]
    names = _KNOWN | {"repo_url", "ref"}
    for name in constraints:
        if name not in _KNOWN:
            where = f"constraints.{name[:64]}"
            raise InvalidRequest(f"there is no constraint {name[:64]!r}", field=where, hint=nearest(name, names))
    plain["metadata"] = {name: str(value) for name, value in mapping(constraints, "metadata").items()}
    # Imported here, since callers that only need `repository_reference` should not wait for it.
    from swe_ai_fleet.codec import from_plain

    try:
        return from_plain(Constraints, plain)
    except ValueError as error:
        raise InvalidRequest(f"the constraints are malformed: {error}", field="constraints") from None


def _check(check: object) -> object:
    if isinstance(check, str):
        return CheckSpec(name=check, command=check)
    if is_object(check) and "command" in check:
        return {"name": check["command"], **check}
    raise InvalidRequest("a check must be a command, or a mapping with a command", field="constraints.checks")


def repository_reference(
    location: str, *, ref: str = "", uncommitted: UncommittedChanges = UncommittedChanges.REFUSE
) -> pb.RepoRef:
    """The repository at `location`, a directory on this machine or a URL. Raises InvalidRequest."""
    directory = _directory(location)
    if directory is not None:
        return pb.RepoRef(path=str(directory), ref=ref, uncommitted=_UNCOMMITTED[uncommitted])
    if is_url(location):
        return pb.RepoRef(url=location, ref=ref)
    raise InvalidRequest(
        f"{location[:200]!r} is neither a directory nor a URL",
        field="repo",
        hint="use the directory of a git repository, or a URL that git can clone",
    )


def _directory(location: str) -> Path | None:
    try:
        directory = Path(location).expanduser()
        return directory.resolve() if location and directory.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        # Too long a name, an unknown user's home, or a NUL: no directory.
        return None


def is_url(location: str) -> bool:
    """Whether git would clone this from another host."""
    return "://" in location or _SCP_LIKE.fullmatch(location) is not None
