"""What containers are told is what their programs take: settings, files, modules, secrets."""

from __future__ import annotations

import base64
import importlib.util
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from pydantic import AliasChoices

from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.runtime.installation.installing import install
from swe_ai_fleet.settings import Settings
from tests.manifests.objects import DEPLOY, Object, PodView, environment, files, found, of_kind, pods

_ALL = "<all of it>"
_SITE_SECRETS = {
    ("fleet", "fleet-git"): {_ALL},
    ("fleet-agents", "fleet-git"): {"username", "password"},
    ("fleet", "fleet-git-acme"): {_ALL},
    ("fleet", "fleet-git-umbrella"): {_ALL},
    ("fleet", "fleet-public-tls"): {"tls.crt", "tls.key"},
    ("fleet", "fleet-backup"): {"operator.nk"},
    ("fleet-tests", "fleet-client"): {"token", "ca.crt"},
}
"""Secrets that only a site has; docs/kubernetes.md says how to make them."""


@cache
def _variables() -> frozenset[str]:
    """Every `FLEET_…` that some process of ours reads."""
    names = {"FLEET_SERVER", "FLEET_TOKEN"}
    for kind in load_parts("settings"):
        names |= {f"{kind.model_config['env_prefix']}{field.upper()}" for field in kind.model_fields}
    for field, info in Settings.model_fields.items():
        names |= {f"FLEET_{field.upper()}"} | (set() if info.repr else {f"FLEET_{field.upper()}_FILE"})
        if isinstance(info.validation_alias, AliasChoices):
            names |= {str(choice) for choice in info.validation_alias.choices}
    return frozenset(names)


@cache
def written() -> Mapping[tuple[str, str], Mapping[str, bytes]]:
    """The secrets that `fleet init --kubernetes` writes, by namespace and name."""
    with tempfile.TemporaryDirectory() as directory:
        install(Path(directory) / "i", tenants=("default", "acme", "umbrella"), kubernetes=True)
        manifests = [json.loads(path.read_text()) for path in Path(directory).rglob("i/kubernetes/**/*.json")]
    return {
        (one["metadata"]["namespace"], one["metadata"]["name"]): {
            key: base64.b64decode(value) for key, value in one["data"].items()
        }
        for one in manifests
    }


def ours(objects: Sequence[Object]) -> Iterator[tuple[PodView, Object, dict[str, str]]]:
    """The containers of our images, with the variables of each."""
    for pod in pods(objects):
        for container in pod.containers:
            if "/fleet-" in container["image"]:
                yield pod, container, environment(objects, pod, container)


def settings_are_known(objects: Sequence[Object]) -> Iterator[str]:
    told = [(f"{pod} {container['name']}", variables) for pod, container, variables in ours(objects)]
    told.append(("Jobs", found(objects, "ConfigMap", "fleet-agent-settings")["data"]))
    for where, variables in told:
        for name in sorted(variables):
            if name.startswith("FLEET_") and name not in _variables():
                yield f"{where}: nobody reads {name}"


def files_are_mounted(objects: Sequence[Object]) -> Iterator[str]:
    for pod, container, told in ours(objects):
        # A path may be a directory in which volumes are.
        there = {*files(pod, container), *(str(Path(one["mountPath"]).parent) for one in container["volumeMounts"])}
        for value in told.values():
            if value.startswith("/etc/fleet/") and value not in there:
                yield f"{pod} {container['name']}: no volume has {value}"
    # The runner mounts its files secret at /etc/fleet.
    for value in found(objects, "ConfigMap", "fleet-agent-settings")["data"].values():
        if value.startswith("/etc/fleet/") and Path(value).name not in written()["fleet-agents", "fleet-agents"]:
            yield f"Jobs: no file {value}"


def modules_are_there(objects: Sequence[Object]) -> Iterator[str]:
    for pod, container, _ in ours(objects):
        arguments = container.get("args", ())
        if list(arguments[:2]) == ["python", "-m"]:
            spec = importlib.util.find_spec(arguments[2])
            package = spec is not None and spec.submodule_search_locations
            if spec is None or (package and importlib.util.find_spec(f"{arguments[2]}.__main__") is None):
                yield f"{pod}: `python -m {arguments[2]}` finds nothing to run"
            for file in arguments[3:]:
                if file.endswith(".py") and not (DEPLOY.parents[1] / file).is_file():
                    yield f"{pod}: there is no {file}"


def _named_secrets(objects: Sequence[Object]) -> Iterator[tuple[str, str, str]]:
    """Namespace, name and key of every secret that Pods, Jobs and Ingresses name; an empty key is the whole of it."""
    for pod in pods(objects):
        for container in pod.containers:
            for one in container.get("env", ()):
                if reference := one.get("valueFrom", {}).get("secretKeyRef"):
                    yield pod.namespace, reference["name"], reference["key"]
            for one in container.get("envFrom", ()):
                if "secretRef" in one:
                    yield pod.namespace, one["secretRef"]["name"], ""
        for volume in pod.spec.get("volumes", ()):
            if secret := volume.get("secret"):
                # Whole secrets hold more than one Pod needs.
                for item in secret.get("items") or [{"key": _ALL}]:
                    yield pod.namespace, secret["secretName"], item["key"]
    told = found(objects, "ConfigMap", "fleet-runner")["data"]
    names = [told["FLEET_RUNNER_FILES_SECRET"], *json.loads(told["FLEET_RUNNER_AGENT_SECRETS"])]
    names += json.loads(told["FLEET_RUNNER_GIT_SECRETS"]).values()
    yield from ((told["FLEET_RUNNER_NAMESPACE"], name, "") for name in names)
    for one in of_kind(objects, "Ingress"):
        yield from ((one["metadata"]["namespace"], tls["secretName"], "") for tls in one["spec"]["tls"])


def secrets_are_made(objects: Sequence[Object]) -> Iterator[str]:
    known: dict[tuple[str, str], set[str]] = {place: set(data) for place, data in written().items()} | _SITE_SECRETS
    for namespace, name, key in sorted(_named_secrets(objects)):
        if (namespace, name) not in known or (key and key not in known[namespace, name]):
            yield f"nobody makes {namespace}/{name} {key}"
