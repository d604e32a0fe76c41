"""Schemas of the custom resources we use, as far as we use them: a field that is not in here is a misspelt one.

Written from the API references of KubeRay 1.6, prometheus-operator 0.90, Gateway API 1.4, Argo Workflows 4.0 and Tekton
1.6; the projects' own definitions are megabytes, and no Python package ships them. Parts that Kubernetes itself defines
are checked by its own schemas (`strict.py`).
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
ANY: Schema = {}
TEXT: Schema = {"type": "string", "minLength": 1}
MAYBE_EMPTY: Schema = {"type": "string"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
DURATION: Schema = {"type": "string", "pattern": r"^(0|(\d+(ms|s|m|h|d|w|y))+)$"}


def _object(fields: str, **types: Schema) -> Schema:
    """An object of these fields alone, required ones marked by `!`; texts, where no type is given."""
    names = [name.rstrip("!") for name in fields.split()]
    assert types.keys() <= set(names), types.keys() - set(names)
    return {
        "type": "object",
        "properties": {name: types.get(name, TEXT) for name in names},
        "required": [name[:-1] for name in fields.split() if name.endswith("!")],
        "additionalProperties": False,
    }


def _list(items: Schema, at_least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": at_least}


def _one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def _kind(spec: Schema) -> Schema:
    meta = _object("name generateName namespace labels annotations", labels=TEXTS, annotations=TEXTS)
    return _object("apiVersion! kind! metadata! spec!", metadata=meta, spec=spec)


_GROUP = {"rayStartParams": TEXTS, "template": {"type": "object"}, "resources": TEXTS, "labels": TEXTS}
_AUTOSCALER = _object(
    "version upscalingMode idleTimeoutSeconds imagePullPolicy env envFrom resources securityContext volumeMounts",
    version=_one_of("v1", "v2"),
    upscalingMode=_one_of("Default", "Aggressive", "Conservative"),
    idleTimeoutSeconds=COUNT,
    imagePullPolicy=_one_of("Always", "IfNotPresent", "Never"),
    resources=ANY,
    securityContext=ANY,
    **dict.fromkeys(("env", "envFrom", "volumeMounts"), _list(ANY)),
)
_HEAD = _object(
    "rayStartParams template! resources labels serviceType enableIngress",
    serviceType=_one_of("ClusterIP", "NodePort", "LoadBalancer"),
    enableIngress=FLAG,
    **_GROUP,
)
_WORKERS = _object(
    "groupName! rayStartParams template! resources labels replicas minReplicas! maxReplicas! numOfHosts "
    "idleTimeoutSeconds",
    **dict.fromkeys(("replicas", "minReplicas", "maxReplicas", "numOfHosts", "idleTimeoutSeconds"), COUNT),
    **_GROUP,
)
_RAY_CLUSTER = _object(
    "rayVersion enableInTreeAutoscaling autoscalerOptions headGroupSpec! workerGroupSpecs!",
    rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=_AUTOSCALER,
    headGroupSpec=_HEAD,
    workerGroupSpecs=_list(_WORKERS, 1),
)

_OPERATOR = _one_of("In", "NotIn", "Exists", "DoesNotExist")
_SELECTOR = _object(
    "matchLabels matchExpressions",
    matchLabels=TEXTS,
    matchExpressions=_list(_object("key! operator! values", operator=_OPERATOR, values=_list(TEXT))),
)
_ENDPOINTS = _list(
    _object(
        "port! path scheme interval scrapeTimeout",
        path={"type": "string", "pattern": "^/"},
        scheme=_one_of("http", "https", "HTTP", "HTTPS"),
        interval=DURATION,
        scrapeTimeout=DURATION,
    ),
    1,
)
_POD_MONITOR = _object("jobLabel selector! podMetricsEndpoints!", selector=_SELECTOR, podMetricsEndpoints=_ENDPOINTS)
_SERVICE_MONITOR = _object("jobLabel selector! endpoints!", selector=_SELECTOR, endpoints=_ENDPOINTS)
_RULE = _object("alert! expr! labels! annotations! for", labels=TEXTS, annotations=TEXTS, **{"for": DURATION})
_RULES = _object("name! interval rules!", interval=DURATION, rules=_list(_RULE, 1))

_CALL = _object(
    "backendRefs! timeouts",
    backendRefs=_list(_object("name! port!", port={"type": "integer"}), 1),
    timeouts=_object("request backendRequest", request=DURATION, backendRequest=DURATION),
)
_ROUTE = _object(
    "parentRefs! hostnames rules!",
    parentRefs=_list(_object("name! namespace sectionName"), 1),
    hostnames=_list(TEXT),
    rules=_list(_CALL, 1),
)
_REFERENCES = _list(_object("group! kind! name!", group=MAYBE_EMPTY), 1)
_BACKEND_TLS = _object(
    "targetRefs! validation!",
    targetRefs=_REFERENCES,
    validation=_object(
        "hostname! caCertificateRefs wellKnownCACertificates",
        caCertificateRefs=_REFERENCES,
        wellKnownCACertificates=_one_of("System"),
    ),
)

_INPUTS = _object(
    "parameters artifacts",
    parameters=_list(_object("name! value description valueFrom", value=MAYBE_EMPTY, valueFrom=_object("path"))),
    artifacts=_list(_object("name! path archive optional from", archive=ANY, optional=FLAG)),
)
_ARGO_TASK = _object("name! template! depends when arguments", arguments=_INPUTS)
_ARGO_TEMPLATE = _object(
    "name! inputs outputs container script volumes securityContext automountServiceAccountToken activeDeadlineSeconds "
    "retryStrategy dag",
    inputs=_INPUTS,
    outputs=_INPUTS,
    volumes=_list(ANY),
    automountServiceAccountToken=FLAG,
    activeDeadlineSeconds=COUNT,
    retryStrategy=_object("limit retryPolicy expression", limit={"type": ["integer", "string"]}),
    dag=_object("tasks!", tasks=_list(_ARGO_TASK, 1)),
    **dict.fromkeys(("container", "script", "securityContext"), ANY),
)
_KEPT = ("secondsAfterCompletion", "secondsAfterSuccess", "secondsAfterFailure")
_ARGO = _object(
    "entrypoint! arguments serviceAccountName automountServiceAccountToken executor securityContext "
    "activeDeadlineSeconds ttlStrategy volumes templates!",
    arguments=_INPUTS,
    automountServiceAccountToken=FLAG,
    executor=_object("serviceAccountName"),
    securityContext=ANY,
    activeDeadlineSeconds=COUNT,
    ttlStrategy=_object(" ".join(_KEPT), **dict.fromkeys(_KEPT, COUNT)),
    volumes=_list(ANY),
    templates=_list(_ARGO_TEMPLATE, 1),
)

_TYPE = _one_of("string", "array", "object")
_PARAMS = _list(_object("name! type description default", type=_TYPE, default=ANY))
_VALUES = _list(_object("name! value!", value=ANY))
_STEP = _object(
    "name! image! script command args env workingDir timeout volumeMounts computeResources securityContext",
    command=_list(TEXT),
    args=_list(MAYBE_EMPTY),
    env=_list(ANY),
    timeout=DURATION,
    volumeMounts=_list(ANY),
    computeResources=ANY,
    securityContext=ANY,
)
_TEKTON_TASK = _object(
    "description params results workspaces stepTemplate volumes steps!",
    params=_PARAMS,
    results=_list(_object("name! type description", type=_TYPE)),
    workspaces=_list(_object("name! description optional readOnly mountPath", optional=FLAG, readOnly=FLAG)),
    stepTemplate=ANY,
    volumes=_list(ANY),
    steps=_list(_STEP, 1),
)
_PIPELINE_TASK = _object(
    "name! taskRef! runAfter params workspaces timeout",
    taskRef=_object("name! kind"),
    runAfter=_list(TEXT),
    params=_VALUES,
    workspaces=_list(_object("name! workspace!")),
    timeout=DURATION,
)
_PIPELINE = _object(
    "params workspaces results tasks!",
    params=_PARAMS,
    workspaces=_list(_object("name! description optional", optional=FLAG)),
    results=_list(_object("name! value! description", value=ANY)),
    tasks=_list(_PIPELINE_TASK, 1),
)
_STORAGE = ("emptyDir", "persistentVolumeClaim", "secret", "volumeClaimTemplate")
_PIPELINE_RUN = _object(
    "pipelineRef! params timeouts taskRunTemplate workspaces",
    pipelineRef=_object("name!"),
    params=_VALUES,
    timeouts=_object("pipeline tasks", pipeline=DURATION, tasks=DURATION),
    taskRunTemplate=_object("serviceAccountName podTemplate", podTemplate=ANY),
    workspaces=_list(_object(f"name! {' '.join(_STORAGE)}", **dict.fromkeys(_STORAGE, ANY))),
)

SCHEMAS: dict[tuple[str, str], Schema] = {
    ("ray.io/v1", "RayCluster"): _kind(_RAY_CLUSTER),
    ("monitoring.coreos.com/v1", "PodMonitor"): _kind(_POD_MONITOR),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _kind(_SERVICE_MONITOR),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _kind(_object("groups!", groups=_list(_RULES, 1))),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _kind(_ROUTE),
    ("gateway.networking.k8s.io/v1", "BackendTLSPolicy"): _kind(_BACKEND_TLS),
    ("argoproj.io/v1alpha1", "WorkflowTemplate"): _kind(_ARGO),
    ("tekton.dev/v1", "Task"): _kind(_TEKTON_TASK),
    ("tekton.dev/v1", "Pipeline"): _kind(_PIPELINE),
    ("tekton.dev/v1", "PipelineRun"): _kind(_PIPELINE_RUN),
}
