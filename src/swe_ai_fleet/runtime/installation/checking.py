"""What is wrong with an installation, before it is found out by a server that does not start."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.runtime.installation.authority import days_left, others_may_read, signed_by
from swe_ai_fleet.runtime.installation.layout import ISSUER, SERVERS, SERVICES, Layout, public_keys_of, users
from swe_ai_fleet.runtime.installation.nats_config import accounts_file

SOON_DAYS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is, or soon will be, wrong with a file, and what mends it."""

    file: Path
    fault: str
    mend: str


def check(directory: Path) -> tuple[Finding, ...]:
    """Every fault of an installation: what is missing, open to others, running out or does not fit. Blocks."""
    layout = Layout(directory=directory.absolute())
    again = f"fleet init {directory}"
    tenants = layout.tenants()
    needed = [layout.settings, layout.access, layout.authority, layout.accounts, layout.server, layout.ray_token]
    needed += [layout.audit_key, layout.audit_public_keys]
    needed += [layout.service_token(service) for service in SERVICES]
    needed += [layout.nkey(user) for user in (*users(tenants), ISSUER)]
    needed += [path for server in SERVERS for path in (layout.certificate(server), layout.key(server))]
    missing = [Finding(file=path, fault="is missing", mend=again) for path in needed if not path.exists()]
    if not tenants:
        missing.append(Finding(file=layout.accounts, fault="has no tenant", mend=f"{again} --tenants NAME"))
    faults = [*missing, *_open(layout, needed)]
    if layout.authority.exists():
        faults += _authority(layout, again)
        for server in SERVERS:
            faults += _certificate(layout, server, f"{again} --rotate certificates")
    if not missing:
        faults += _accounts(layout, tenants, again)
    return tuple(faults)


def _open(layout: Layout, needed: list[Path]) -> list[Finding]:
    paths = [*needed, layout.authority_key, *layout.kubernetes.rglob("*.json")]
    return [
        Finding(file=path, fault="can be read by others", mend=f"chmod 600 {path}")
        for path in paths
        if path.exists() and others_may_read(path)
    ]


def _authority(layout: Layout, again: str) -> list[Finding]:
    path = layout.authority
    mend = (
        f"move it and {layout.authority_key.name} away, {again} --rotate certificates, give the new one to all clients"
    )
    try:
        left = days_left(path.read_text())
    except ValueError as error:
        return [Finding(file=path, fault=f"is not a certificate: {error}", mend=mend)]
    if left < SOON_DAYS:
        return [Finding(file=path, fault="has expired" if left < 0 else f"expires in {left:.0f} days", mend=mend)]
    return []


def _certificate(layout: Layout, server: str, mend: str) -> list[Finding]:
    path, key = layout.certificate(server), layout.key(server)
    if not path.exists() or not key.exists():
        return []
    try:
        left = days_left(path.read_text())
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, key, password="")
    except (ValueError, ssl.SSLError) as error:
        return [Finding(file=path, fault=f"is not a certificate of {key.name}: {error}", mend=mend)]
    if not signed_by(path.read_text(), layout.authority.read_text()):
        return [Finding(file=path, fault=f"is not signed by {layout.authority.name}", mend=mend)]
    if left < SOON_DAYS:
        return [Finding(file=path, fault="has expired" if left < 0 else f"expires in {left:.0f} days", mend=mend)]
    return []


def _accounts(layout: Layout, tenants: tuple[str, ...], mend: str) -> list[Finding]:
    try:
        keys = public_keys_of(layout, tenants)
        others = layout.named_tenants()
    except FleetError as error:
        return [Finding(file=layout.accounts, fault=str(error), mend=error.hint)]
    if layout.accounts.read_text() != accounts_file(keys, tenants, others=others):
        return [Finding(file=layout.accounts, fault="does not match the nkeys and tenants", mend=mend)]
    return []
