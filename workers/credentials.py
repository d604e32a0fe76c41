"""Credentials of repositories from files: what a secret mounted into the container that clones looks like."""

from __future__ import annotations

import asyncio
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace import Credential, CredentialLookup
from swe_ai_fleet.domain.task import check_identifier

_MAX_BYTES = 64 * 1024


def mounted_credentials(directory: Path) -> CredentialLookup:
    """Finds `<reference>.username` and `<reference>.password` in a directory; without a reference `username` and
    `password`, as a secret of type `kubernetes.io/basic-auth` has them.

    The lookup raises InvalidRequest for a reference that is no name.
    """

    async def credential(tenant: str, reference: str) -> Credential | None:
        prefix = f"{check_identifier(reference, field='repo.credential')}." if reference else ""
        return await asyncio.to_thread(_read, directory, prefix)

    return credential


def _read(directory: Path, prefix: str) -> Credential | None:
    password = directory / f"{prefix}password"
    if not password.is_file():
        return None
    username = directory / f"{prefix}username"
    name = _line(username) if username.is_file() else "git"
    return Credential(username=name, password=_line(password))


def _line(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode().strip("\r\n")
