"""Every manifest is what Kubernetes takes, strictly: no field that it does not know.

The schemas are those of `kubernetes-validate`, read once: the package itself reads a megabyte for every object. Those
of custom resources are ours, as far as we use them: the projects' own definitions are megabytes, and no Python package
ships them. They are of KubeRay 1.6, prometheus-operator 0.90, Gateway API 1.4, Argo Workflows 4.0 and Tekton 1.6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.manifests.objects import Object, name_of, pods

Schema = dict[str, Any]
_KINDS: Mapping[str, Schema] = {
    "": {"type": "string", "minLength": 1},
    "any": {},
    "maybe": {"type": "string"},
    "texts": {"type": "object", "additionalProperties": {"type": "string"}},
    "list": {"type": "array"},
    "count": {"type": "integer", "minimum": 0},
    "flag": {"type": "boolean"},
    "time": {"type": "string", "pattern": r"^(0|(\d+(ms|s|m|h|d|w|y))+)$"},
}
# A place in a `spec` (that of an item ends in `[]`), and its fields: required ones end in `!`, a kind of `_KINDS` or
# the values that there are stand behind a colon. Fields that are places themselves have none.
Places = Mapping[str, str]

_SELECTOR: Places = {
    "selector": "matchLabels:texts matchExpressions",
    "selector.matchExpressions[]": "key! operator:In|NotIn|Exists|DoesNotExist! values:list",
}
_ENDPOINT = "port! path scheme:http|https|HTTP|HTTPS interval:time scrapeTimeout:time"
_PARAMETER, _ARTIFACT = "name! value:maybe description valueFrom:any", "name! path archive:any optional:flag from"
_INPUTS = "parameters artifacts"


def _inputs(*places: str) -> Places:
    """Arguments, inputs and outputs of Argo Workflows."""
    made: dict[str, str] = {}
    for place in places:
        made |= {place: _INPUTS, f"{place}.parameters[]": _PARAMETER, f"{place}.artifacts[]": _ARTIFACT}
    return made


_PLACES: Mapping[tuple[str, str], Places] = {
    ("ray.io/v1", "RayCluster"): {
        "": "rayVersion enableInTreeAutoscaling:flag autoscalerOptions headGroupSpec! workerGroupSpecs!",
        "autoscalerOptions": "version:v1|v2 upscalingMode:Default|Aggressive|Conservative idleTimeoutSeconds:count "
        "imagePullPolicy:Always|IfNotPresent|Never env:list envFrom:list resources:any securityContext:any "
        "volumeMounts:list",
        "headGroupSpec": "rayStartParams:texts template:any! resources:texts labels:texts enableIngress:flag "
        "serviceType:ClusterIP|NodePort|LoadBalancer",
        "workerGroupSpecs[]": "groupName! rayStartParams:texts template:any! resources:texts labels:texts "
        "replicas:count minReplicas:count! maxReplicas:count! numOfHosts:count idleTimeoutSeconds:count",
    },
    ("monitoring.coreos.com/v1", "PodMonitor"): {
        "": "jobLabel selector! podMetricsEndpoints!", "podMetricsEndpoints[]": _ENDPOINT, **_SELECTOR,
    },
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {
        "": "jobLabel selector! endpoints!", "endpoints[]": _ENDPOINT, **_SELECTOR,
    },
    ("monitoring.coreos.com/v1", "PrometheusRule"): {
        "": "groups!",
        "groups[]": "name! interval:time rules!",
        "groups[].rules[]": "alert record expr! labels:texts annotations:texts for:time",
    },
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "": "scaleTargetRef! minReplicaCount:count maxReplicaCount:count pollingInterval:count cooldownPeriod:count "
        "fallback advanced triggers!",
        "scaleTargetRef": "apiVersion kind name!",
        "fallback": "failureThreshold:count! replicas:count! behavior:static|currentReplicas|currentReplicasIfHigher",
        "advanced": "restoreToOriginalReplicaCount:flag horizontalPodAutoscalerConfig",
        "advanced.horizontalPodAutoscalerConfig": "name behavior:any",
        "triggers[]": "type! metadata:texts! name metricType:AverageValue|Value|Utilization useCachedMetrics:flag",
    },
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): {
        "": "parentRefs! hostnames:list rules!",
        "parentRefs[]": "name! namespace sectionName",
        "rules[]": "backendRefs! timeouts",
        "rules[].backendRefs[]": "name! port:count!",
        "rules[].timeouts": "request:time backendRequest:time",
    },
    ("gateway.networking.k8s.io/v1", "BackendTLSPolicy"): {
        "": "targetRefs! validation!",
        "targetRefs[]": "group:maybe! kind! name!",
        "validation": "hostname! caCertificateRefs wellKnownCACertificates:System",
        "validation.caCertificateRefs[]": "group:maybe! kind! name!",
    },
    ("argoproj.io/v1alpha1", "WorkflowTemplate"): {
        "": "entrypoint! arguments serviceAccountName automountServiceAccountToken:flag executor securityContext:any "
        "activeDeadlineSeconds:count ttlStrategy volumes:list templates!",
        "executor": "serviceAccountName",
        "ttlStrategy": "secondsAfterCompletion:count secondsAfterSuccess:count secondsAfterFailure:count",
        "templates[]": "name! inputs outputs container:any script:any volumes:list securityContext:any "
        "automountServiceAccountToken:flag activeDeadlineSeconds:count retryStrategy dag",
        "templates[].retryStrategy": "limit:any retryPolicy expression",
        "templates[].dag": "tasks!",
        "templates[].dag.tasks[]": "name! template! depends when arguments",
        **_inputs("arguments", "templates[].inputs", "templates[].outputs", "templates[].dag.tasks[].arguments"),
    },
    ("tekton.dev/v1", "Task"): {
        "": "description params results workspaces stepTemplate:any volumes:list steps!",
        "params[]": "name! type:string|array|object description default:any",
        "results[]": "name! type:string|array|object description",
        "workspaces[]": "name! description optional:flag readOnly:flag mountPath",
        "steps[]": "name! image! script command:list args:list env:list workingDir timeout:time volumeMounts:list "
        "computeResources:any securityContext:any",
    },
    ("tekton.dev/v1", "Pipeline"): {
        "": "params workspaces results tasks!",
        "params[]": "name! type:string|array|object description default:any",
        "workspaces[]": "name! description optional:flag",
        "results[]": "name! value:any! description",
        "tasks[]": "name! taskRef! runAfter:list params workspaces timeout:time",
        "tasks[].taskRef": "name! kind",
        "tasks[].params[]": "name! value:any!",
        "tasks[].workspaces[]": "name! workspace!",
    },
    ("tekton.dev/v1", "PipelineRun"): {
        "": "pipelineRef! params timeouts taskRunTemplate workspaces",
        "pipelineRef": "name!",
        "params[]": "name! value:any!",
        "timeouts": "pipeline:time tasks:time",
        "taskRunTemplate": "serviceAccountName podTemplate:any",
        "workspaces[]": "name! emptyDir:any persistentVolumeClaim:any secret:any volumeClaimTemplate:any",
    },
}  # fmt: skip


def _object(places: Places, place: str = "") -> Schema:
    properties, required = dict[str, Schema](), list[str]()
    for word in places[place].split():
        name, _, kind = word.rstrip("!").partition(":")
        inside = f"{place}.{name}".lstrip(".")
        if inside in places:
            properties[name] = _object(places, inside)
        elif f"{inside}[]" in places:
            properties[name] = {"type": "array", "items": _object(places, f"{inside}[]")}
        else:
            properties[name] = _KINDS.get(kind, {"enum": kind.split("|")})
        required += [name] if word.endswith("!") else []
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_WHOLE: Places = {
    "": "apiVersion! kind! metadata! spec!",
    "metadata": "name generateName namespace labels:texts annotations:texts",
}
VALIDATORS = {
    kind: Draft202012Validator(
        _object({**_WHOLE, "spec": places[""], **{f"spec.{place}": fields for place, fields in places.items()}})
    )
    for kind, places in _PLACES.items()
}
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
    if own := VALIDATORS.get((one["apiVersion"], one["kind"])):
        own.validate(one)
        for part in _inside(one):
            validate(part, version)
        return
    # rbac.authorization.k8s.io/v1 is in rbac-v1.
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", one["apiVersion"])
    validator: Any = _validator(version, f"{one['kind'].lower()}-{group}.json")
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
