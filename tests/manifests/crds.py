"""Schemas of the custom resources we use, as far as we use them: a field that is not in here is a misspelt one.

Written from the API references of KubeRay 1.6, prometheus-operator 0.90, Gateway API 1.4, Argo Workflows 4.0 and Tekton
1.6; the projects' own definitions are megabytes, and no Python package ships them. Parts that Kubernetes itself defines
are checked by its own schemas (`strict.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        "groups[].rules[]": "alert! expr! labels:texts! annotations:texts! for:time",
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
SCHEMAS = {
    kind: _object({**_WHOLE, "spec": places[""], **{f"spec.{place}": fields for place, fields in places.items()}})
    for kind, places in _PLACES.items()
}
