"""Credentials of repositories from files: what secrets look like that are mounted into a container.

A caller names the repository, so a credential is shown only to hosts that whoever keeps it has named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from swe_ai_fleet.adapters.git_workspace.remote import CredentialLookup
from swe_ai_fleet.adapters.git_workspace.routes import Credential
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import check_identifier

DEFAULT = "default"
"""The reference of the credential of repositories that name none."""
_MAX_BYTES = 64 * 1024


def mounted_credentials(directory: Path, *, by_tenant: bool = False, hosts: Sequence[str] = ()) -> CredentialLookup:
    """Finds credentials in a directory.

    `<reference>.username`, `<reference>.password` and `<reference>.hosts` are those of a reference; `username`,
    `password` (as a secret of type `kubernetes.io/basic-auth` has them) and `hosts` those of repositories that name
    none, where their host may see them. Over ssh `ssh-privatekey` (as in `kubernetes.io/ssh-auth`) takes the place of
    `password`.

    Args:
        directory: Where the files are.
        by_tenant: Each tenant has a directory of its own in it.
        hosts: What counts where no file names the hosts.

    The lookup raises InvalidRequest for a reference that is no name, PreconditionFailed for a host that may not see it.
    """

    async def credential(tenant: str, reference: str, location: str) -> Credential | None:
        place = directory / check_identifier(tenant, field="tenant") if by_tenant else directory
        try:
            return await asyncio.to_thread(_read, place, _prefix(reference), location, tuple(hosts))
        except PreconditionFailed:
            if not reference:
                return None
            raise

    return credential


def _prefix(reference: str) -> str:
    return "" if reference in ("", DEFAULT) else f"{check_identifier(reference, field='repo.credential_ref')}."


def _read(directory: Path, prefix: str, location: str, hosts: Sequence[str]) -> Credential | None:
    over_http = urlsplit(location).scheme.lower() in ("http", "https")
    secret = directory / f"{prefix}{'password' if over_http else 'ssh-privatekey'}"
    if not secret.is_file():
        return None
    host = _host(location)
    named = directory / f"{prefix}hosts"
    found = _line(named).split(",") if named.is_file() else [one for one in hosts if one != "*"]
    allowed = [pattern.strip().lower() for pattern in found if pattern.strip()]
    if not any(fnmatchcase(host, pattern) for pattern in allowed):
        raise PreconditionFailed(
            f"the credential may not be shown to {host[:128]!r}",
            field="repo.credential_ref",
            hint=f"name the host in the key {prefix}hosts of the secret",
        )
    if not over_http:
        return Credential(key=_line(secret))
    username = directory / f"{prefix}username"
    return Credential(username=_line(username) if username.is_file() else "git", password=_line(secret))


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
