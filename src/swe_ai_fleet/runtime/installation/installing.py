"""Writes a secured installation into a directory: keys once, files derived from them each time."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.runtime.audit_keys import PublicKeys, new_key_pem, public_keys, signing_key
from swe_ai_fleet.runtime.installation.authority import (
    KeyPair,
    host_names,
    make_directory,
    new_authority,
    new_certificate,
    server_names,
    update_private,
)
from swe_ai_fleet.runtime.installation.layout import (
    ISSUER,
    SERVERS,
    SERVICES,
    InstallationLayout,
    accounts_of,
    manifests,
    users,
)
from swe_ai_fleet.runtime.installation.nats_accounts import server_file
from swe_ai_fleet.runtime.private_files import keep_private, new_seed, public_key

NATS_LISTEN = "127.0.0.1:4222"
ROTATIONS = ("certificates", "nats", "issuer", "ray", "services", "audit")
"""What can be rotated: servers' certificates, the nkeys of the fleet's users, the key that signs hosts' logins, Ray's
token, the services' tokens, the signing key of audits."""
_TENANT = re.compile(r"[a-z][a-z0-9-]{0,62}")
_TOKEN_BYTES = 32
_ROTATED = r'^sha256 *= *"%s"\n(previous_\w+ *=.*\n)*'
"""The line with the digest of a service's token, and the lines that an earlier rotation left below it."""
_ACCESS_NOTE = """\
# Tenants and how callers prove that they belong to one. Of tokens only digests stand here.
# Read anew when it changes. `fleet access` makes more tokens.
"""
_SETTINGS_NOTE = """\
# Settings of a fleet on this machine; `fleet init` wrote them once, and does not change them again.
# The model server is missing: set model_url here, or FLEET_MODEL_URL.
"""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The files written, and the new tokens of people by tenant, which are stored nowhere else."""

    files_written: list[Path] = field(default_factory=list[Path])
    tokens: dict[str, str] = field(default_factory=dict[str, str])


def install(
    directory: Path,
    *,
    tenants: Sequence[str] = (),
    hosts: Sequence[str] = (),
    nats_listen: str = NATS_LISTEN,
    kubernetes: bool = False,
    rotate: Sequence[str] = (),
    overlap: float = 0.0,
) -> Installed:
    """Write the missing files of an installation. Blocks.

    Existing keys, tokens, `fleet.toml`, `nats.conf` and entries of `access.toml` are never overwritten, except those
    that `rotate` names. nkeys whose overlap is over are removed.

    Args:
        directory: The installation; created with access for its owner only.
        tenants: Further tenants that get an account on NATS and an administrator's token; if there are none at
            all, the default tenant.
        hosts: DNS names and addresses of the servers' certificates, beside this machine's own.
        nats_listen: The `host:port` of a NATS server on this machine; used at the first installation only.
        kubernetes: Whether to write manifests of secrets, too.
        rotate: Names of `ROTATIONS`.
        overlap: Seconds for which the old keys and tokens of the rotations `nats` and `services` stay valid.

    Raises:
        InvalidRequest: A tenant, a host or a rotation is malformed, or the overlap of an earlier rotation is not over.
        PreconditionFailed: An existing file is damaged.
    """
    for tenant in tenants:
        if not _TENANT.fullmatch(tenant):
            raise InvalidRequest(
                f"{tenant[:80]!r} is not a valid tenant name",
                field="tenants",
                hint="1 to 63 of a-z, 0-9 and '-', a letter first",
            )
    for name in rotate:
        if name not in ROTATIONS:
            raise InvalidRequest(f"{name[:40]!r} cannot be rotated", field="rotate", hint=", ".join(ROTATIONS))
    layout = InstallationLayout(directory=directory.absolute())
    done = Installed()
    for path in layout.directories:
        make_directory(path)
    all_tenants = tuple(sorted({*layout.tenants(), *tenants})) or (DEFAULT_TENANT,)
    if not {"nats", "services"}.intersection(rotate):
        overlap = 0.0
    until, ends = time.time() + overlap, layout.former_keys()[1]
    if overlap and ends > time.time():
        raise InvalidRequest(
            f"an earlier rotation overlaps until {datetime.fromtimestamp(ends, UTC):%Y-%m-%d %H:%M} UTC",
            field="overlap",
            hint="wait for that, or `--overlap 0`, which leaves only new ones",
        )
    _certificates(layout, done, hosts, anew="certificates" in rotate)
    _nkeys(layout, done, all_tenants, rotate, until if overlap else 0.0)
    _tokens(layout, done, rotate)
    _audit_keys(layout, done, anew="audit" in rotate)
    _access(layout, done, all_tenants, until if overlap else 0.0)
    _write(done, layout.accounts, accounts_of(layout, all_tenants))
    text = server_file(
        listen=nats_listen,
        store=layout.directory / "nats" / "data",
        certificate=layout.certificate("nats"),
        key=layout.key("nats"),
        accounts=layout.accounts.name,
    )
    # Written once, like the settings with its address, since operators edit both.
    _keep(done, layout.server, text)
    _keep(done, layout.settings, _settings(layout, nats_listen))
    if kubernetes or layout.kubernetes.exists():
        made = {layout.kubernetes / name: manifest for name, manifest in manifests(layout).items()}
        make_directory(layout.kubernetes)
        make_directory(layout.kubernetes / "tenants")
        for path, manifest in made.items():
            make_directory(path.parent)
            _write(done, path, manifest)
        for path in (layout.kubernetes / "tenants").rglob("*.json"):
            if path not in made:
                path.unlink()  # of a removed tenant, whose namespace is gone, too
    return done


def _certificates(layout: InstallationLayout, done: Installed, hosts: Sequence[str], *, anew: bool) -> None:
    certificate, key = layout.authority, layout.authority_key
    if not certificate.exists():
        if key.exists():
            raise PreconditionFailed(f"{key} has no certificate beside it", field="init", hint=f"restore {certificate}")
        authority = new_authority("SWE AI Fleet")
        # The key first: after an interruption a certificate without its key would be useless.
        _keep(done, key, authority.key)
        _keep(done, certificate, authority.certificate)
    for server in SERVERS:
        path = layout.certificate(server)
        if path.exists() and layout.key(server).exists() and not anew:
            continue
        if not key.exists():
            raise PreconditionFailed(
                f"without {key.name} no certificate can be issued", field="init", hint=f"restore {key} for the rotation"
            )
        former_names = _names_in(path)
        names = tuple(dict.fromkeys((*server_names(server, hosts), *former_names)))
        pair = new_certificate(
            KeyPair(certificate=certificate.read_text(), key=key.read_text()),
            f"fleet-{server}",
            hosts=names,
            server=True,
            client=server == "nats",
        )
        _write(done, layout.key(server), pair.key)
        _write(done, path, pair.certificate)


def _names_in(certificate: Path) -> tuple[str, ...]:
    """The names in the former certificate, which the next one keeps; none where it cannot be read."""
    try:
        return host_names(certificate.read_text())
    except (FileNotFoundError, ValueError):
        return ()


def _nkeys(
    layout: InstallationLayout, done: Installed, tenants: tuple[str, ...], rotate: Sequence[str], until: float
) -> None:
    # Tenants keep their nkeys themselves, so those are not rotated.
    anew = {user for user in users(tenants) if "nats" in rotate and not user.startswith("tenant-")}
    if until:
        former = {user: public_key(layout.nkey(user)) for user in sorted(anew) if layout.nkey(user).exists()}
        _write(done, layout.former, json.dumps({"until": until, "keys": former}, indent=2) + "\n")
    elif anew or layout.former_keys()[1] < time.time():
        layout.former.unlink(missing_ok=True)
    for user in users(tenants):
        (_write if user in anew else _keep)(done, layout.nkey(user), new_seed())
    (_write if ISSUER in rotate else _keep)(done, layout.nkey(ISSUER), new_seed(account=True))


def _tokens(layout: InstallationLayout, done: Installed, rotate: Sequence[str]) -> None:
    write = _write if "ray" in rotate else _keep
    write(done, layout.ray_token, f"{secrets.token_hex(_TOKEN_BYTES)}\n")
    for service in SERVICES:
        write = _write if "services" in rotate else _keep
        write(done, layout.service_token(service), f"{_new_token()}\n")


def _audit_keys(layout: InstallationLayout, done: Installed, *, anew: bool) -> None:
    """The signing key, and the public keys: those of rotated keys stay, for the heads they signed."""
    write = _write if anew else _keep
    write(done, layout.audit_key, new_key_pem())
    earlier = public_keys(layout.audit_public_keys) if layout.audit_public_keys.exists() else PublicKeys()
    own = signing_key(layout.audit_key.read_text(encoding="utf-8")).public
    _write(done, layout.audit_public_keys, earlier.with_key(own).pem())


def _access(layout: InstallationLayout, done: Installed, tenants: tuple[str, ...], until: float) -> None:
    """The access file: existing entries stay, missing ones are appended."""
    text = layout.access.read_text(encoding="utf-8") if layout.access.exists() else _ACCESS_NOTE
    named, tokens = layout.named_tenants(), layout.named_tokens()
    parts: list[str] = [text.rstrip("\n") + "\n"]
    parts += [f"\n[tenants.{tenant}]\n" for tenant in dict.fromkeys((DEFAULT_TENANT, *tenants)) if tenant not in named]
    for service in SERVICES:
        digest = _digest(layout.service_token(service).read_text().strip())
        stale = tokens.get(f"service:{service}")
        if not stale:
            parts.append(_entry(f"service:{service}", DEFAULT_TENANT, "service", digest))
        elif stale != digest:
            entry = f'sha256 = "{digest}"\n'
            if until:
                ends = datetime.fromtimestamp(until, UTC)
                entry += f'previous_sha256 = "{stale}"\nprevious_expires = {ends:%Y-%m-%dT%H:%M:%SZ}\n'
            parts[0], changed = re.subn(_ROTATED % stale, entry, parts[0], flags=re.MULTILINE)
            if not changed:  # the file was edited and formatted differently
                parts[0] = parts[0].replace(stale, digest)
    for tenant in tenants:
        name = f"admin@{tenant}"[:64]
        if name not in tokens and tenant not in named:
            done.tokens[tenant] = _new_token()
            parts.append(_entry(name, tenant, "admin", _digest(done.tokens[tenant])))
    _write(done, layout.access, "".join(parts))


def _entry(name: str, tenant: str, role: str, digest: str) -> str:
    return f'\n[[tokens]]\nname = "{name}"\ntenant = "{tenant}"\nroles = ["{role}"]\nsha256 = "{digest}"\n'


def _settings(layout: InstallationLayout, nats_listen: str) -> str:
    values = {
        "home": layout.directory / "home",
        "access_file": layout.access,
        "tls_cert": layout.certificate("orchestrator"),
        "tls_key": layout.key("orchestrator"),
        "tls_ca": layout.authority,
        "nats_url": f"tls://{nats_listen}",
        "nats_ca": layout.authority,
        "nats_nkey_file": layout.nkey("orchestrator"),
        "nats_issuer_file": layout.nkey(ISSUER),
        "ray_token_file": layout.ray_token,
        "audit_signing_key_file": layout.audit_key,
        "audit_public_keys": layout.audit_public_keys,
    }
    # A JSON string of text without controls is a TOML string.
    return _SETTINGS_NOTE + "".join(f"{name} = {_quoted(str(value))}\n" for name, value in values.items())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _new_token() -> str:
    return f"fleet_{secrets.token_urlsafe(_TOKEN_BYTES)}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _keep(done: Installed, path: Path, text: str) -> None:
    if keep_private(path, lambda: text):
        done.files_written.append(path)


def _write(done: Installed, path: Path, text: str) -> None:
    if update_private(path, text):
        done.files_written.append(path)
