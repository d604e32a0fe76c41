"""The schemas of `kubernetes-validate`, strict ones, read once: the package reads a megabyte for every object."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.manifests.objects import Object


def validate(one: Object, version: str) -> None:
    """Raises ValidationError for what Kubernetes of that version does not take, LookupError for an unknown kind."""
    # rbac.authorization.k8s.io/v1 is in rbac-v1.
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", one["apiVersion"])
    validator: Any = _validator(version, f"{one['kind'].lower()}-{group}.json")
    validator.validate(one)


@cache
def _read(version: str, name: str) -> Any:
    path = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict" / name
    if not path.is_file():
        raise LookupError(f"Kubernetes {version} has no {name}")
    return json.loads(path.read_text())


@cache
def _definitions(version: str) -> Registry[Any]:
    return _with(Registry[Any](), _read(version, "_definitions.json"))


def _with(registry: Registry[Any], schema: Any) -> Registry[Any]:
    return registry.with_resource(schema["$id"], Resource[Any].from_contents(schema))


@cache
def _validator(version: str, name: str) -> Draft202012Validator:
    schema = _read(version, name)
    return Draft202012Validator(schema, registry=_with(_definitions(version), schema))
