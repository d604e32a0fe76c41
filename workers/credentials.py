"""Credentials of repositories from files: what a secret mounted into the container that clones looks like.

A caller names the repository, so a credential is shown only to hosts that the secret itself names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from swe_ai_fleet.adapters.git_workspace import Credential, CredentialLookup
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import check_identifier
from swe_ai_fleet.settings import listed

DEFAULT = "default"
"""The reference of the credential of repositories that name none."""
_MAX_BYTES = 64 * 1024


def mounted_credentials(directory: Path, location: str, *, hosts: Sequence[str] = ()) -> CredentialLookup:
    """Finds credentials for one repository in a directory.

    `<reference>.username`, `<reference>.password` and `<reference>.hosts` are those of a reference; `username`,
    `password` (as a secret of type `kubernetes.io/basic-auth` has them) and `hosts` are the default's.

    Args:
        directory: Where the secret is mounted.
        location: URL of the repository.
        hosts: What counts where the secret names no hosts.

    The lookup raises InvalidRequest for a reference that is no name, PreconditionFailed for a host that may not see it.
    """

    async def credential(tenant: str, reference: str) -> Credential | None:
        return await asyncio.to_thread(_read, directory, _prefix(reference), _host(location), tuple(hosts))

    return credential


def has_default(directory: Path, location: str, *, hosts: Sequence[str] = ()) -> bool:
    """Whether there is a credential for a repository that names none, and its host may see it. Blocking."""
    try:
        return _read(directory, "", _host(location), tuple(hosts)) is not None
    except PreconditionFailed:
        return False


def _prefix(reference: str) -> str:
    return "" if reference == DEFAULT else f"{check_identifier(reference, field='repo.credential')}."


def _read(directory: Path, prefix: str, host: str, hosts: Sequence[str]) -> Credential | None:
    password = directory / f"{prefix}password"
    if not password.is_file():
        return None
    named = directory / f"{prefix}hosts"
    allowed = listed(_line(named)) if named.is_file() else tuple(one for one in hosts if one != "*")
    if not any(fnmatchcase(host, pattern.lower()) for pattern in allowed):
        raise PreconditionFailed(
            f"the credential may not be shown to {host[:128]!r}",
            field="repo.credential",
            hint=f"name the host in the key {prefix}hosts of the secret",
        )
    username = directory / f"{prefix}username"
    return Credential(username=_line(username) if username.is_file() else "git", password=_line(password))


def _host(location: str) -> str:
    """The host of a URL, or of git's short form `user@host:path`."""
    try:
        parts = urlsplit(location)
        if parts.scheme and parts.hostname:
            return parts.hostname.lower()
    except ValueError as fault:
        raise InvalidRequest(f"{location[:128]!r} is no URL", field="repo.url") from fault
    return location.partition(":")[0].rpartition("@")[2].lower()


def _line(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode().strip("\r\n")
