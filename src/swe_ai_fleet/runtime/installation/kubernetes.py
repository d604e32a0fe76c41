"""The secrets of an installation as manifests, for `kubectl apply -k`."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.runtime.installation.layout import ISSUER, SERVERS, SERVICES, Layout
from swe_ai_fleet.runtime.installation.nats_users import OPERATOR, fleet_users

NAMESPACE = "fleet"
AGENTS_NAMESPACE = "fleet-agents"
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
        "fleet-agents-model.json": _secret(
            "fleet-agents-model", {"FLEET_MODEL_API_KEY": key}, namespace=AGENTS_NAMESPACE
        ),
        "fleet-agents.json": _secret("fleet-agents", {"ca.crt": authority}, namespace=AGENTS_NAMESPACE),
    }
    resources = "".join(f"  - {name}\n" for name in files)
    head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    return {**files, "kustomization.yaml": f"{_NOTE}{head}resources:\n{resources}"}


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
