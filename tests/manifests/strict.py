"""Every manifest is what Kubernetes takes, strictly: no field that it does not know.

The schemas are those of `kubernetes-validate`, read once: the package itself reads a megabyte for every object. Of
custom resources only the Pods in them are looked at: no Python package ships the projects' own definitions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.manifests.objects import Object, name_of, pods

VERSIONS = ("1.33", "1.36")
_CUSTOM = frozenset(
    ("ray.io", "monitoring.coreos.com", "keda.sh", "gateway.networking.k8s.io", "argoproj.io", "tekton.dev")
)


@cache
def _read(version: str, name: str) -> Any:
    path = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict" / name
    if not path.is_file():
        raise LookupError(f"Kubernetes {version} has no {name}")
    return json.loads(path.read_text())


def _with(registry: Registry[Any], schema: Any) -> Registry[Any]:
    return registry.with_resource(schema["$id"], Resource[Any].from_contents(schema))


@cache
def _definitions(version: str) -> Registry[Any]:
    return _with(Registry[Any](), _read(version, "_definitions.json"))


@cache
def _validator(version: str, name: str) -> Draft202012Validator:
    schema = _read(version, name)
    return Draft202012Validator(schema, registry=_with(_definitions(version), schema))


def validate(one: Object, version: str) -> None:
    """Raises ValidationError, naming the place, LookupError for a kind that Kubernetes of that version has not."""
    group = one["apiVersion"].rpartition("/")[0]
    if group in _CUSTOM:
        for pod in pods([one]):
            template = {"metadata": {"labels": dict(pod.labels)}, "spec": pod.spec}
            inside = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "inside"}, "template": template}
            validate(inside, version)
        return
    # rbac.authorization.k8s.io/v1 is in rbac-v1.
    name = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", one["apiVersion"])
    validator: Any = _validator(version, f"{one['kind'].lower()}-{name}.json")
    validator.validate(one)


def schemas_fit(objects: Sequence[Object]) -> Iterator[str]:
    for version in VERSIONS:
        yield from filter(None, (_fault(json.dumps(one), version) for one in objects))


@cache
def _fault(text: str, version: str) -> str:
    """What is wrong with an object; most of them are in every overlay."""
    one = json.loads(text)
    try:
        validate(one, version)
    except jsonschema.ValidationError as fault:
        return f"{name_of(one)} in Kubernetes {version}: {fault.json_path}: {fault.message}"
    return ""
