"""Manifests as tests look at them: objects, the Pods that they make, and what those are told."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.manifests.kubectl import kustomized

Object = dict[str, Any]
DEPLOY = Path(__file__).parents[2] / "deploy" / "k8s"
OVERLAYS = ("laptop", "gpu", "production")
SITES = {
    "extras": (
        *("production", "tracing", "backup", "ingress", "private-addresses", "dns-nodelocal", "registry-login"),
        "images",
    ),
    "jobs": ("production", "jobs", "dns-openshift", "images"),
    "user namespaces": ("production", "node-check", "userns", "apparmor", "images"),
    "jobs in user namespaces": ("tenants", "node-check", "userns", "images"),
    "a runtime class": ("production", "node-check", "runtime-class", "images"),
    "jobs on a laptop": ("laptop", "tracing", "jobs", "images"),
    "many models": ("gpu", "vllm-replicas", "vllm-image-weights", "vllm-keda"),
}
"""Overlays with components beside their own, as a site would write them: together every component there is."""
EVERYTHING = (*OVERLAYS, "tenants", "tests", *SITES)


@cache
def _rendered(name: str) -> str:
    with TemporaryDirectory() as directory:
        where = DEPLOY / name if name == "tests" else DEPLOY / "overlays" / name
        if name in SITES:
            where = Path(directory).resolve()
            there = Path(os.path.relpath(DEPLOY, where))
            start, *components = SITES[name]
            site = {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [str(there / "overlays" / start)],
                "components": [str(there / "components" / one) for one in components],
            }
            (where / "kustomization.yaml").write_text(yaml.safe_dump(site))
        return json.dumps(
            [one for one in yaml.load_all(kustomized(where), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if one]
        )


HASHED = re.compile(r"(fleet-(?:settings|runner))-[a-z0-9]{10}\b")
"""Names that kustomize has put a hash of their content to."""


@cache
def _unhashed(name: str) -> str:
    return HASHED.sub(r"\1", _rendered(name))


def built(name: str, *, hashes: bool = False) -> list[Object]:
    """The objects of an overlay, of `tests` or of a site, fresh copies each time; with the `hashes` of names."""
    return json.loads(_rendered(name) if hashes else _unhashed(name))


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A value or an argument as a container gets it: `$(NAME)` is a variable's value."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)


def name_of(one: Object) -> str:
    """`Kind namespace/name`."""
    meta = one["metadata"]
    return f"{one['kind']} {meta.get('namespace', '')}/{meta['name']}"


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def found(objects: Sequence[Object], kind: str, name: str) -> Object:
    """The one object of a kind and a name; of those of tenants' namespaces the shared one."""
    own = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    (one,) = [one for one in own if not str(one["metadata"].get("namespace")).startswith("fleet-agents-")]
    return one


@dataclass(frozen=True, kw_only=True)
class PodView:
    """The Pods that an object makes."""

    owner: Object
    namespace: str
    labels: Mapping[str, str]
    spec: Object
    role: str = ""

    def __str__(self) -> str:
        return f"{name_of(self.owner)}{f' ({self.role})' if self.role else ''}"

    @property
    def containers(self) -> list[Object]:
        """All of them, the first to start first."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    def ports(self) -> dict[str, int]:
        """Container ports by name."""
        return {port["name"]: port["containerPort"] for one in self.containers for port in one.get("ports", ())}


def pods(objects: Sequence[Object]) -> Iterator[PodView]:
    """Every kind of Pod that the objects make."""
    for one in objects:
        namespace = one["metadata"].get("namespace", "default")
        spec = one.get("spec", {})
        match one["kind"]:
            case "Deployment" | "StatefulSet" | "DaemonSet" | "Job":
                templates = {"": spec["template"]}
            case "CronJob":
                templates = {"": spec["jobTemplate"]["spec"]["template"]}
            case "RayCluster":
                templates = {"head": spec["headGroupSpec"]["template"]}
                templates |= {group["groupName"]: group["template"] for group in spec["workerGroupSpecs"]}
            case _:
                continue
        for role, template in templates.items():
            labels = template["metadata"].get("labels", {})
            yield PodView(owner=one, namespace=namespace, labels=labels, spec=template["spec"], role=role)


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether labels fit a label selector; an empty one fits all."""
    if not selector:
        return True
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", ()):
        value, values = labels.get(rule["key"]), rule.get("values", ())
        match rule["operator"]:
            case "In" if value not in values:
                return False
            case "NotIn" if value in values:
                return False
            case "Exists" if value is None:
                return False
            case "DoesNotExist" if value is not None:
                return False
            case _:
                pass
    return True


def environment(objects: Sequence[Object], pod: PodView, container: Object) -> dict[str, str]:
    """The plain variables of a container, those of ConfigMaps too; what comes from elsewhere is empty."""
    told: dict[str, str] = {}
    maps = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in of_kind(objects, "ConfigMap")}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            told |= maps[pod.namespace, source["configMapRef"]["name"]]["data"]
    return told | {one["name"]: one.get("value", "") for one in container.get("env", ())}


def files(pod: PodView, container: Object) -> set[str]:
    """The paths of files that secrets put into a container."""
    volumes = {one["name"]: one for one in pod.spec.get("volumes", ())}
    return {
        f"{mount['mountPath']}/{item['path']}"
        for mount in container.get("volumeMounts", ())
        for item in volumes.get(mount["name"], {}).get("secret", {}).get("items", ())
    }
