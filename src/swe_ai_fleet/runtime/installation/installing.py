"""A secured installation written into a directory: keys once, what follows from them each time.

Its secrets are written as manifests too, for `kubectl apply -k`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.runtime.audit_keys import PublicKeys, new_key_pem, public_keys, signing_key
from swe_ai_fleet.runtime.installation.authority import (
    NAMESPACE,
    KeyPair,
    host_names,
    make_directory,
    new_authority,
    new_certificate,
    server_names,
    update_private,
)
from swe_ai_fleet.runtime.installation.layout import ISSUER, SERVERS, SERVICES, Layout, public_keys_of, users
from swe_ai_fleet.runtime.installation.nats_config import accounts_file, server_file
from swe_ai_fleet.runtime.installation.nats_users import OPERATOR, fleet_users, new_seed
from swe_ai_fleet.runtime.private_files import keep_private

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


def manifests(layout: Layout) -> Mapping[str, str]:
    """The files of a directory that `kubectl apply -k` takes, by name: a secret each, and what names them all.

    The authority's key, the operator's and tenants' nkeys stay out: nothing in a cluster needs them. `fleet-model`
    holds a new key, for a model server in the cluster; one that somebody put there stays. Jobs of agents get the same.

    Raises InvalidRequest for a `fleet-model` that holds none.
    """
    authority = layout.authority.read_text()
    certificates = {"ca.crt": authority}
    for server in SERVERS:
        certificates[f"{server}.crt"] = layout.certificate(server).read_text()
        certificates[f"{server}.key"] = layout.key(server).read_text()
    names = [*(user.name for user in fleet_users() if user.name != OPERATOR), ISSUER]
    nkeys = {f"{name}.nk": layout.nkey(name).read_text() for name in names}
    access = {"access.toml": layout.access.read_text()}
    access |= {f"{service}.token": layout.service_token(service).read_text() for service in SERVICES}
    ray = {"auth_token": layout.ray_token.read_text().strip()}
    audit = {"signing-key.pem": layout.audit_key.read_text(), "public-keys.pem": layout.audit_public_keys.read_text()}
    key = _model_key(layout.kubernetes / "fleet-model.json")
    # JSON is YAML, and needs no library to be written.
    files = {
        "fleet-tls.json": _secret("fleet-tls", certificates),
        "fleet-nats.json": _secret("fleet-nats", {"accounts.conf": layout.accounts.read_text(), **nkeys}),
        "fleet-access.json": _secret("fleet-access", access),
        "fleet-ray.json": _secret("fleet-ray", ray),
        "fleet-audit.json": _secret("fleet-audit", audit),
        "fleet-model.json": _secret("fleet-model", {"api-key": key}),
    }
    of_agents = {"fleet-agents-model": {"FLEET_MODEL_API_KEY": key}, "fleet-agents": {"ca.crt": authority}}
    files |= {f"{name}.json": _secret(name, values, namespace=AGENTS_NAMESPACE) for name, values in of_agents.items()}
    resources = "".join(f"  - {name}\n" for name in files)
    head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    # For namespaces that a cluster of one tenant does not have, so they are not among the resources.
    tenants = {
        f"tenants/{name}-{tenant}.json": _secret(name, values, namespace=f"{AGENTS_NAMESPACE}-{tenant}")
        for name, values in of_agents.items()
        for tenant in layout.tenants()
    }
    digest = hashlib.sha256("".join(files.values()).encode()).hexdigest()[:16]
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


NATS_LISTEN = "127.0.0.1:4222"
ROTATIONS = ("certificates", "nats", "ray", "services", "audit")
"""What can be made anew: servers' certificates, the fleet's nkeys, Ray's token, the services', the key of audits."""
_TENANT = re.compile(r"[a-z][a-z0-9-]{0,62}")
_TOKEN_BYTES = 32
_FORMER = "agents"


@dataclass(frozen=True, kw_only=True)
class Installed:
    """What was done: the files written, and the tokens that were made for people, which stand nowhere else."""

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
) -> Installed:
    """Write what is missing of an installation. Blocks.

    Keys, tokens, `fleet.toml`, `nats.conf` and what stands in `access.toml` are never written twice, except for what
    `rotate` names.

    Args:
        directory: Where; made with access for its owner only.
        tenants: Those that get an account on NATS and an administrator's token, beside those that have one; none at
            all: the default tenant.
        hosts: DNS names and addresses of the servers' certificates, beside this machine's own.
        nats_listen: Where a NATS server on this machine is to listen, `host:port`; only the first time counts.
        kubernetes: Whether manifests of secrets are written, too.
        rotate: Names of `ROTATIONS`.

    Raises:
        InvalidRequest: A tenant, a host or a rotation is none.
        PreconditionFailed: What already exists is broken.
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
    layout = Layout(directory=directory.absolute())
    done = Installed()
    for path in layout.directories:
        make_directory(path)
    everybody = tuple(sorted({*layout.tenants(), *tenants})) or (DEFAULT_TENANT,)
    _certificates(layout, done, hosts, anew="certificates" in rotate)
    _nkeys(layout, done, everybody, anew="nats" in rotate)
    _tokens(layout, done, rotate)
    _audit_keys(layout, done, anew="audit" in rotate)
    _access(layout, done, everybody)
    keys = public_keys_of(layout, everybody)
    _write(done, layout.accounts, accounts_file(keys, everybody, others=layout.named_tenants()))
    text = server_file(
        listen=nats_listen,
        store=layout.directory / "nats" / "data",
        certificate=layout.certificate("nats"),
        key=layout.key("nats"),
        accounts=layout.accounts.name,
    )
    # Once, as the settings that name its address: what an operator adds there stays.
    _keep(done, layout.server, text)
    _keep(done, layout.settings, _settings(layout, nats_listen))
    if kubernetes or layout.kubernetes.exists():
        make_directory(layout.kubernetes)
        make_directory(layout.kubernetes / "tenants")
        make_directory(layout.kubernetes / "roll")
        for name, manifest in manifests(layout).items():
            _write(done, layout.kubernetes / name, manifest)
    return done


def _certificates(layout: Layout, done: Installed, hosts: Sequence[str], *, anew: bool) -> None:
    certificate, key = layout.authority, layout.authority_key
    if not certificate.exists():
        if key.exists():
            raise PreconditionFailed(f"{key} has no certificate beside it", field="init", hint=f"restore {certificate}")
        authority = new_authority("SWE AI Fleet")
        # The key first: a certificate whose key was lost on the way could sign nothing.
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
        known = _names_in(path)
        names = tuple(dict.fromkeys((*server_names(server, hosts), *known)))
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
    """The names that a certificate was for, so that the next one is for them too; none where it cannot be read."""
    try:
        return host_names(certificate.read_text())
    except (FileNotFoundError, ValueError):
        return ()


def _nkeys(layout: Layout, done: Installed, tenants: tuple[str, ...], *, anew: bool) -> None:
    for user in users(tenants):
        path = layout.nkey(user)
        # Tenants hold theirs in their own hands.
        if anew and not user.startswith("tenant-"):
            _write(done, path, new_seed())
        else:
            _keep(done, path, new_seed())
    write = _write if anew else _keep
    write(done, layout.nkey(ISSUER), new_seed(account=True))
    if layout.nkey(_FORMER).exists():
        # The one user of all hosts, which no server lets in any more.
        layout.nkey(_FORMER).unlink()


def _tokens(layout: Layout, done: Installed, rotate: Sequence[str]) -> None:
    write = _write if "ray" in rotate else _keep
    write(done, layout.ray_token, f"{secrets.token_hex(_TOKEN_BYTES)}\n")
    for service in SERVICES:
        write = _write if "services" in rotate else _keep
        write(done, layout.service_token(service), f"{_new_token()}\n")


def _audit_keys(layout: Layout, done: Installed, *, anew: bool) -> None:
    """The key, and the public keys: one that was rotated away goes on counting for what it signed."""
    write = _write if anew else _keep
    write(done, layout.audit_key, new_key_pem())
    known = public_keys(layout.audit_public_keys) if layout.audit_public_keys.exists() else PublicKeys()
    own = signing_key(layout.audit_key.read_text(encoding="utf-8")).public
    _write(done, layout.audit_public_keys, known.with_key(own).pem())


def _access(layout: Layout, done: Installed, tenants: tuple[str, ...]) -> None:
    """Who may come in: what is there stays, what is missing is added at its end."""
    text = layout.access.read_text(encoding="utf-8") if layout.access.exists() else _ACCESS_NOTE
    known, tokens = layout.named_tenants(), layout.named_tokens()
    parts: list[str] = [text.rstrip("\n") + "\n"]
    parts += [f"\n[tenants.{tenant}]\n" for tenant in dict.fromkeys((DEFAULT_TENANT, *tenants)) if tenant not in known]
    for service in SERVICES:
        digest = _digest(layout.service_token(service).read_text().strip())
        stale = tokens.get(f"service:{service}")
        if not stale:
            parts.append(_entry(f"service:{service}", DEFAULT_TENANT, "service", digest))
        elif stale != digest:
            parts = [part.replace(stale, digest) for part in parts]
    for tenant in tenants:
        name = f"admin@{tenant}"[:64]
        if name not in tokens and tenant not in known:
            done.tokens[tenant] = _new_token()
            parts.append(_entry(name, tenant, "admin", _digest(done.tokens[tenant])))
    _write(done, layout.access, "".join(parts))


def _entry(name: str, tenant: str, role: str, digest: str) -> str:
    return f'\n[[tokens]]\nname = "{name}"\ntenant = "{tenant}"\nroles = ["{role}"]\nsha256 = "{digest}"\n'


def _settings(layout: Layout, nats_listen: str) -> str:
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
    import json

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


_ACCESS_NOTE = """\
# Tenants and how callers prove that they belong to one. Of tokens only digests stand here.
# Read anew when it changes. `fleet access` makes more tokens.
"""
_SETTINGS_NOTE = """\
# Settings of a fleet on this machine; `fleet init` wrote them once, and does not change them again.
# The model server is missing: set model_url here, or FLEET_MODEL_URL.
"""
