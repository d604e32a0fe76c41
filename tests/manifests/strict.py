"""Every manifest is what Kubernetes takes, strictly: no field that it does not know.

The schemas are those of `kubernetes-validate`, read once: the package itself reads a megabyte for every object.
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

from tests.manifests.crds import SCHEMAS
from tests.manifests.objects import Object, name_of, pods

VERSIONS = ("1.33", "1.36")
_OF_A_CONTAINER = ("env", "envFrom", "resources", "securityContext", "volumeMounts")


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
    schema = SCHEMAS.get((one["apiVersion"], one["kind"]))
    if schema is not None:
        jsonschema.validate(one, schema)
        for part in _inside(one):
            validate(part, version)
        return
    # rbac.authorization.k8s.io/v1 is in rbac-v1.
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", one["apiVersion"])
    validator: Any = _validator(version, f"{one['kind'].lower()}-{group}.json")
    validator.validate(one)


def schemas_fit(objects: Sequence[Object]) -> Iterator[str]:
    for version in VERSIONS:
        for one in objects:
            try:
                validate(one, version)
            except jsonschema.ValidationError as fault:
                yield f"{name_of(one)} in Kubernetes {version}: {fault.json_path}: {fault.message}"


def _inside(one: Object) -> Iterator[Object]:
    """What Kubernetes itself defines of a custom resource, as objects of its own."""
    if one["kind"] == "RayCluster":
        for pod in pods([one]):
            template = {"metadata": {"labels": dict(pod.labels)}, "spec": pod.spec}
            yield {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "inside"}, "template": template}
        options = {key: value for key, value in one["spec"]["autoscalerOptions"].items() if key in _OF_A_CONTAINER}
        yield _pod_of({"name": "autoscaler", "image": "a", **options})
    if one["kind"] == "WorkflowTemplate":
        for template in one["spec"]["templates"]:
            for key in template.keys() & {"container", "script"}:
                container = {key: value for key, value in template[key].items() if key != "source"}
                yield _pod_of({"name": "main", **container}, one["spec"].get("volumes", []))
    if one["kind"] == "Task":
        shared = one["spec"].get("stepTemplate", {})
        for step in one["spec"]["steps"]:
            container = {**shared, **{key: value for key, value in step.items() if key not in ("script", "timeout")}}
            container["resources"] = container.pop("computeResources", {})
            yield _pod_of(container, one["spec"].get("volumes", []))


def _pod_of(container: Object, volumes: list[Object] | None = None) -> Object:
    spec = {"containers": [container], "volumes": volumes or []}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "inside"}, "spec": spec}
