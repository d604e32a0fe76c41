"""Every manifest is what Kubernetes 1.33 and later take, strictly: no field that they do not know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
import yaml

from tests.manifests import strict
from tests.manifests.crds import SCHEMAS
from tests.manifests.objects import DEPLOY, OVERLAYS, Object, found, name_of, overlay, pods

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
VERSIONS = ("1.33", "1.36")


def check(one: Object, version: str) -> None:
    """Raises ValidationError, naming the place."""
    schema = SCHEMAS.get((one["apiVersion"], one["kind"]))
    if schema is None:
        strict.validate(one, version)
        return
    jsonschema.validate(one, schema)
    for part in _inside(one):
        strict.validate(part, version)


def _inside(one: Object) -> Iterator[Object]:
    """What Kubernetes itself defines of a custom resource, as objects of its own."""
    meta = {"metadata": {"name": "inside"}}
    if one["kind"] == "RayCluster":
        for pod in pods([one]):
            template = {"metadata": {"labels": dict(pod.labels)}, "spec": pod.spec}
            yield {"apiVersion": "v1", "kind": "PodTemplate", **meta, "template": template}
        options = {key: value for key, value in one["spec"]["autoscalerOptions"].items() if key in _OF_A_CONTAINER}
        yield _pod_of({"name": "autoscaler", "image": "a", **options})
    if one["kind"] == "WorkflowTemplate":
        for template in one["spec"]["templates"]:
            for key in ("container", "script"):
                if key in template:
                    container = {key: value for key, value in template[key].items() if key != "source"}
                    yield _pod_of({"name": "main", **container}, one["spec"].get("volumes", []))
    if one["kind"] == "Task":
        shared = one["spec"].get("stepTemplate", {})
        for step in one["spec"]["steps"]:
            container = {**shared, **{key: value for key, value in step.items() if key not in ("script", "timeout")}}
            container["resources"] = container.pop("computeResources", {})
            yield _pod_of(container, one["spec"].get("volumes", []))


_OF_A_CONTAINER = ("env", "envFrom", "resources", "securityContext", "volumeMounts")


def _pod_of(container: Object, volumes: list[Object] | None = None) -> Object:
    spec = {"containers": [container], "volumes": volumes or []}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "inside"}, "spec": spec}


def _examples() -> list[Object]:
    texts = [path.read_text() for path in sorted(EXAMPLES.rglob("*.yaml"))]
    return [one for text in texts for one in yaml.safe_load_all(text) if one and "kustomize" not in one["apiVersion"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [*OVERLAYS, "tests"])
def test_overlays_fit_the_schemas(name: str, version: str) -> None:
    for one in overlay(name):
        check(one, version)


def test_parts_that_no_overlay_takes_fit_too() -> None:
    for path in ("gateway-api/route.yaml", "backup/backup.yaml"):
        for one in yaml.safe_load_all((DEPLOY / "components" / path).read_text()):
            check(one, VERSIONS[-1])


def test_pipelines_fit_the_schemas() -> None:
    examples = _examples()
    assert {one["kind"] for one in examples} >= {"Job", "WorkflowTemplate", "Task", "Pipeline", "PipelineRun"}
    for one in examples:
        check(one, VERSIONS[-1])


def _with(part: Any, key: str) -> Iterator[Object]:
    """Every table in it that has a key."""
    if isinstance(part, list):
        for one in cast("list[Any]", part):
            yield from _with(one, key)
    if isinstance(part, dict):
        table = cast("Object", part)
        if key in table:
            yield table
        yield from _with(list(table.values()), key)


def test_pipelines_show_their_token_to_the_step_that_submits_only() -> None:
    """The other one works on what strangers wrote. Files of the secret are read by whoever has the volume."""
    examples = _examples()
    containers = list(_with(examples, "image"))
    submits = [one for one in containers if "submit.sh" in json.dumps(one)]
    assert len(submits) == 3 and len(containers) == 6
    assert all({"name": "fleet-client", "key": "token"} in _references(one) for one in submits)
    for one in containers:
        if one not in submits:
            assert _references(one) == [] and "client" not in {mount["name"] for mount in one["volumeMounts"]}
    volumes = list(_with(examples, "secretName"))
    assert len(volumes) == 3
    assert all(one["items"] == [{"key": "ca.crt", "path": "ca.crt"}] for one in volumes)


def _references(container: Object) -> list[Object]:
    return [one["valueFrom"]["secretKeyRef"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})]


def _ray(objects: list[Object]) -> Object:
    return found(objects, "RayCluster", "fleet")["spec"]


BROKEN: list[tuple[str, Callable[[list[Object]], object]]] = [
    ("unknown field", lambda o: found(o, "Deployment", "fleet-gateway")["spec"].update(replica=2)),
    ("wrong type", lambda o: found(o, "Service", "fleet-gateway")["spec"]["ports"][0].update(port="443")),
    ("unknown Ray field", lambda o: _ray(o).update(enableAutoscaling=True)),
    ("number for a text", lambda o: _ray(o)["headGroupSpec"]["rayStartParams"].update(port=6379)),
    (
        "misspelt in a template",
        lambda o: _ray(o)["workerGroupSpecs"][0]["template"]["spec"].update(serviceAcountName="x"),
    ),
    ("autoscaler", lambda o: _ray(o)["autoscalerOptions"]["securityContext"].update(privilege=True)),
    ("monitor", lambda o: found(o, "PodMonitor", "fleet")["spec"].update(podMetricEndpoints=[])),
]


@pytest.mark.parametrize(("what", "broken"), BROKEN, ids=[what for what, _ in BROKEN])
def test_a_manifest_that_does_not_fit_is_seen(what: str, broken: Callable[[list[Object]], object]) -> None:
    objects = overlay("production")
    broken(objects)
    with pytest.raises(jsonschema.ValidationError):
        for one in objects:
            check(one, VERSIONS[-1])


def test_names_are_given_once() -> None:
    for name in OVERLAYS:
        names = [name_of(one) for one in overlay(name)]
        assert len(names) == len(set(names))
