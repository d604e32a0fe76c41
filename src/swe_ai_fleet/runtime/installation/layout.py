"""The files of an installation, the Kubernetes manifests of its secrets, and a check that finds its faults.

The check finds them before a server fails to start.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.json_values import mappings
from swe_ai_fleet.runtime.installation.authority import NAMESPACE, days_left, others_may_read, signed_by
from swe_ai_fleet.runtime.installation.nats_accounts import OPERATOR, accounts_file, fleet_users
from swe_ai_fleet.runtime.private_files import public_key

SERVERS = ("orchestrator", "context", "gateway", "nats")
"""The servers that have certificates."""
SERVICES = ("orchestrator", "gateway")
"""The services that call others on behalf of a caller."""
ISSUER = "issuer"
"""The name of the key that signs agent hosts' logins to NATS."""
AGENTS_NAMESPACE = "fleet-agents"
_ROLL = """\
# Written by `fleet init`: as a component of a site's overlay it starts Deployments anew once secrets have changed.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
  - target: {kind: Deployment}
    patch: |-
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: any}
      spec: {template: {metadata: {annotations: {fleet/secrets: "%s"}}}}
"""
_NOTE = "# Written by `fleet init`; keep it out of repositories.\n"
SOON_DAYS = 30.0


_Section = TypeVar("_Section", dict[str, object], list[object])


class InstallationLayout:
    """The files below a directory that `fleet init` writes."""

    def __init__(self, *, directory: Path) -> None:
        tls, secrets_ = directory / "tls", directory / "secrets"
        self.directory, self.nats = directory, directory / "nats"
        self.directories = (directory, tls, self.nats, secrets_, directory / "home")
        """The directories of every installation, the outermost first."""
        self.settings = directory / "fleet.toml"
        self.access = directory / "access.toml"
        self.authority = tls / "ca.pem"
        """The authority's certificate, which every client needs."""
        self.authority_key = tls / "ca-key.pem"
        """The one file that no server needs; with it certificates can be issued."""
        self.accounts = self.nats / "accounts.conf"
        self.former = self.nats / "former.json"
        """The overlap after a rotation: its end, and the old public nkeys that are valid until then."""
        self.server = self.nats / "nats.conf"
        """The configuration of a NATS server on this machine."""
        self.ray_token = secrets_ / "ray-token"
        self.audit_key = secrets_ / "audit-signing-key.pem"
        """The key that signs the heads of audit chains, for orchestrators only."""
        self.audit_public_keys = secrets_ / "audit-public-keys.pem"
        """The public keys that verify them, those of earlier signing keys included."""
        self.kubernetes = directory / "kubernetes"

    def certificate(self, name: str) -> Path:
        """The certificate of one of `SERVERS`."""
        return self.directory / "tls" / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.directory / "tls" / f"{name}-key.pem"

    def nkey(self, user: str) -> Path:
        """The seed of a user on NATS."""
        return self.nats / f"{user}.nkey"

    def service_token(self, name: str) -> Path:
        """The token of one of `SERVICES` for its calls on behalf of others."""
        return self.directory / "secrets" / f"{name}.token"

    def former_keys(self) -> tuple[Mapping[str, str], float]:
        """Old public nkeys by user and the overlap's end (seconds since 1970, 0: none). Raises PreconditionFailed."""
        try:
            content = json.loads(self.former.read_text(encoding="utf-8"))
            return {str(user): str(key) for user, key in content["keys"].items()}, float(content["until"])
        except FileNotFoundError:
            return {}, 0.0
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PreconditionFailed(
                f"{self.former} cannot be read: {error!r}", field="init", hint="remove it: then only new keys count"
            ) from error

    def tenants(self) -> tuple[str, ...]:
        """The tenants that have an account on NATS, by name."""
        return tuple(sorted(path.stem.removeprefix("tenant-") for path in self.nats.glob("tenant-*.nkey")))

    def named_tenants(self) -> tuple[str, ...]:
        """The tenants in the access file, with or without an account. Raises PreconditionFailed where it is damaged."""
        return tuple(sorted(self._table("tenants", dict[str, object]())))

    def named_tokens(self) -> Mapping[str, str]:
        """The digests of tokens in the access file by their names. Raises PreconditionFailed where it is damaged."""
        entries = mappings(self._table("tokens", list[object]()))
        return {str(entry.get("name", "")): str(entry.get("sha256", "")) for entry in entries}

    def _table(self, name: str, default: _Section) -> _Section:
        try:
            value: object = tomllib.loads(self.access.read_text(encoding="utf-8")).get(name, default)
        except FileNotFoundError:
            return default
        except ValueError as error:
            raise PreconditionFailed(f"{self.access} is not TOML: {error}", field="access_file") from None
        if not isinstance(value, type(default)):
            raise PreconditionFailed(f"{name} of {self.access} is none", field="access_file", hint="see docs/access.md")
        return value


def users(tenants: tuple[str, ...]) -> tuple[str, ...]:
    """The names of all users with an nkey."""
    return (*(user.name for user in fleet_users()), "sys", *(f"tenant-{tenant}" for tenant in tenants))


def accounts_of(layout: InstallationLayout, tenants: tuple[str, ...]) -> str:
    """The configuration of NATS' accounts for the nkeys and tenants. Raises PreconditionFailed."""
    keys = {name: public_key(layout.nkey(name)) for name in (*users(tenants), ISSUER)}
    former = {name: key for name, key in layout.former_keys()[0].items() if key != keys.get(name)}
    keys["callout"] = public_key(layout.nkey(ISSUER), as_user=True)
    return accounts_file(keys, tenants, others=layout.named_tenants(), former=former)


def manifests(layout: InstallationLayout) -> Mapping[str, str]:
    """The files of a directory for `kubectl apply -k`, by name: a secret each, and the kustomization that lists them.

    The authority's key and the nkeys of operator and tenants are left out: no process in a cluster needs them.
    `fleet-model` has a new key, for a model server in the cluster; an edited one stays. Agents' jobs get the same key.

    Raises InvalidRequest for a `fleet-model` without a key.
    """
    authority = layout.authority.read_text()
    certificates = {"ca.crt": authority}
    for server in SERVERS:
        certificates[f"{server}.crt"] = layout.certificate(server).read_text()
        certificates[f"{server}.key"] = layout.key(server).read_text()
    names = [*(user.name for user in fleet_users() if user.name != OPERATOR), ISSUER]
    nkeys = {f"{name}.nk": layout.nkey(name).read_text() for name in names}
    tokens = {f"{service}.token": layout.service_token(service).read_text() for service in SERVICES}
    ray = {"auth_token": layout.ray_token.read_text().strip()}
    audit = {"signing-key.pem": layout.audit_key.read_text(), "public-keys.pem": layout.audit_public_keys.read_text()}
    key = _model_key(layout.kubernetes / "fleet-model.json")
    # JSON is valid YAML and needs no library.
    files = {
        "fleet-tls.json": _secret("fleet-tls", certificates),
        "fleet-nats.json": _secret("fleet-nats", {"accounts.conf": layout.accounts.read_text(), **nkeys}),
        "fleet-access.json": _secret("fleet-access", {"access.toml": layout.access.read_text(), **tokens}),
        "fleet-ray.json": _secret("fleet-ray", ray),
        "fleet-audit.json": _secret("fleet-audit", audit),
        "fleet-model.json": _secret("fleet-model", {"api-key": key}),
    }
    of_agents = {"fleet-agents-model": {"FLEET_MODEL_API_KEY": key}, "fleet-agents": {"ca.crt": authority}}
    files |= {f"{name}.json": _secret(name, values, namespace=AGENTS_NAMESPACE) for name, values in of_agents.items()}
    resources = "".join(f"  - {name}\n" for name in files)
    head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    # Not among the resources, since a cluster with one tenant has no such namespaces.
    tenants = {
        f"tenants/{tenant}/{name}.json": _secret(name, values, namespace=f"{AGENTS_NAMESPACE}-{tenant}")
        for name, values in of_agents.items()
        for tenant in layout.tenants()
    }
    # The digest leaves out accounts and the access file, which their readers reload without a restart.
    read = {**files, "fleet-nats.json": json.dumps(nkeys), "fleet-access.json": json.dumps(tokens)}
    digest = hashlib.sha256("".join(read.values()).encode()).hexdigest()[:16]
    return {
        **files,
        **tenants,
        "kustomization.yaml": f"{_NOTE}{head}resources:\n{resources}",
        "roll/kustomization.yaml": _ROLL % digest,
    }


def _model_key(written: Path) -> str:
    if not written.exists():
        return secrets.token_urlsafe(32)
    try:
        return base64.b64decode(json.loads(written.read_text())["data"]["api-key"]).decode().strip()
    except (ValueError, KeyError, TypeError) as fault:
        hint = "put the key there in base64, or remove the file for a new one"
        raise InvalidRequest(f"{written} has no data.api-key", field="kubernetes", hint=hint) from fault


def _secret(name: str, files: Mapping[str, str], *, namespace: str = NAMESPACE) -> str:
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "swe-ai-fleet"}},
        "type": "Opaque",
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in files.items()},
    }
    return json.dumps(manifest, indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFinding:
    """A present or approaching fault of a file, and the command that fixes it."""

    file: Path
    fault: str
    mend: str


def check(directory: Path) -> tuple[LayoutFinding, ...]:
    """Every fault of an installation: missing, readable by others, expiring or inconsistent files. Blocks."""
    layout = InstallationLayout(directory=directory.absolute())
    again = f"fleet init {directory}"
    tenants = layout.tenants()
    needed = [layout.settings, layout.access, layout.authority, layout.accounts, layout.server, layout.ray_token]
    needed += [layout.audit_key, layout.audit_public_keys]
    needed += [layout.service_token(service) for service in SERVICES]
    needed += [layout.nkey(user) for user in (*users(tenants), ISSUER)]
    needed += [path for server in SERVERS for path in (layout.certificate(server), layout.key(server))]
    missing = [LayoutFinding(file=path, fault="is missing", mend=again) for path in needed if not path.exists()]
    if not tenants:
        missing.append(LayoutFinding(file=layout.accounts, fault="has no tenant", mend=f"{again} --tenants NAME"))
    faults = [*missing, *_open(layout, needed)]
    if layout.authority.exists():
        faults += _authority(layout, again)
        for server in SERVERS:
            faults += _certificate(layout, server, f"{again} --rotate certificates")
    if not missing:
        faults += [*_accounts(layout, tenants, again), *_manifests(layout, again)]
    return tuple(faults)


def _open(layout: InstallationLayout, needed: list[Path]) -> list[LayoutFinding]:
    paths = [*needed, layout.authority_key, *layout.kubernetes.rglob("*.json")]
    return [
        LayoutFinding(file=path, fault="can be read by others", mend=f"chmod 600 {path}")
        for path in paths
        if path.exists() and others_may_read(path)
    ]


def _authority(layout: InstallationLayout, again: str) -> list[LayoutFinding]:
    path = layout.authority
    mend = (
        f"move it and {layout.authority_key.name} away, {again} --rotate certificates, give the new one to all clients"
    )
    try:
        days = days_left(path.read_text())
    except ValueError as error:
        return [LayoutFinding(file=path, fault=f"is not a certificate: {error}", mend=mend)]
    if days < SOON_DAYS:
        return [LayoutFinding(file=path, fault="has expired" if days < 0 else f"expires in {days:.0f} days", mend=mend)]
    return []


def _certificate(layout: InstallationLayout, server: str, mend: str) -> list[LayoutFinding]:
    path, key = layout.certificate(server), layout.key(server)
    if not path.exists() or not key.exists():
        return []
    try:
        days = days_left(path.read_text())
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, key, password="")
    except (ValueError, ssl.SSLError) as error:
        return [LayoutFinding(file=path, fault=f"is not a certificate of {key.name}: {error}", mend=mend)]
    if not signed_by(path.read_text(), layout.authority.read_text()):
        return [LayoutFinding(file=path, fault=f"is not signed by {layout.authority.name}", mend=mend)]
    if days < SOON_DAYS:
        return [LayoutFinding(file=path, fault="has expired" if days < 0 else f"expires in {days:.0f} days", mend=mend)]
    return []


def _accounts(layout: InstallationLayout, tenants: tuple[str, ...], mend: str) -> list[LayoutFinding]:
    try:
        expected, (former, until) = accounts_of(layout, tenants), layout.former_keys()
    except FleetError as error:
        return [LayoutFinding(file=layout.accounts, fault=str(error), mend=error.hint)]
    if layout.accounts.read_text() != expected:
        return [LayoutFinding(file=layout.accounts, fault="does not match the nkeys and tenants", mend=mend)]
    if former and until < time.time():
        mend += ", and have NATS reload"
        return [LayoutFinding(file=layout.former, fault="lets nkeys in whose overlap is over", mend=mend)]
    return []


def _manifests(layout: InstallationLayout, again: str) -> list[LayoutFinding]:
    """Manifests that are out of date: a token revoked in the access file alone is still valid in the cluster."""
    if not layout.kubernetes.exists():
        return []
    try:
        made = {layout.kubernetes / name: manifest for name, manifest in manifests(layout).items()}
    except FleetError as error:
        return [LayoutFinding(file=layout.kubernetes, fault=str(error), mend=error.hint)]
    mend = f"{again}, then `kubectl apply -k {layout.kubernetes}`"
    return [
        LayoutFinding(file=path, fault="is out of date", mend=mend)
        for path, manifest in made.items()
        if not path.exists() or path.read_text() != manifest
    ]
