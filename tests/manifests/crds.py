"""Schemas of the custom resources we use, as far as we use them: a field that is not in here is a misspelt one.

Written from the API references of KubeRay 1.6, prometheus-operator 0.90, Gateway API 1.4, Argo Workflows 4.0 and Tekton
1.6; the projects' own definitions are megabytes, and no Python package ships them. Parts that Kubernetes itself defines
are checked by its own schemas (`test_schemas.py`).
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
ANY: Schema = {}
TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
DURATION: Schema = {"type": "string", "pattern": r"^(0|(\d+(ms|s|m|h|d|w|y))+)$"}


def _object(required: str = "", **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(items: Schema, at_least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": at_least}


def _one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def _kind(spec: Schema, **more: Schema) -> Schema:
    meta = _object("", name=TEXT, generateName=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS)
    return _object("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata=meta, spec=spec, **more)


_GROUP = {
    "rayStartParams": TEXTS,
    "template": {"type": "object"},
    "resources": TEXTS,
    "labels": TEXTS,
}
_RAY_CLUSTER = _kind(
    _object(
        "headGroupSpec workerGroupSpecs",
        rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        enableInTreeAutoscaling=FLAG,
        autoscalerOptions=_object(
            "",
            version=_one_of("v1", "v2"),
            upscalingMode=_one_of("Default", "Aggressive", "Conservative"),
            idleTimeoutSeconds=COUNT,
            imagePullPolicy=_one_of("Always", "IfNotPresent", "Never"),
            env=_list(ANY),
            envFrom=_list(ANY),
            resources=ANY,
            securityContext=ANY,
            volumeMounts=_list(ANY),
        ),
        headGroupSpec=_object(
            "template", serviceType=_one_of("ClusterIP", "NodePort", "LoadBalancer"), enableIngress=FLAG, **_GROUP
        ),
        workerGroupSpecs=_list(
            _object(
                "groupName template minReplicas maxReplicas",
                groupName=TEXT,
                replicas=COUNT,
                minReplicas=COUNT,
                maxReplicas=COUNT,
                numOfHosts=COUNT,
                idleTimeoutSeconds=COUNT,
                **_GROUP,
            ),
            1,
        ),
    )
)

_SELECTOR = _object(
    "",
    matchLabels=TEXTS,
    matchExpressions=_list(
        _object("key operator", key=TEXT, operator=_one_of("In", "NotIn", "Exists", "DoesNotExist"), values=_list(TEXT))
    ),
)
_ENDPOINT = _object(
    "port",
    port=TEXT,
    path={"type": "string", "pattern": "^/"},
    scheme=_one_of("http", "https", "HTTP", "HTTPS"),
    interval=DURATION,
    scrapeTimeout=DURATION,
)
_POD_MONITOR = _kind(
    _object("selector podMetricsEndpoints", jobLabel=TEXT, selector=_SELECTOR, podMetricsEndpoints=_list(_ENDPOINT, 1))
)
_SERVICE_MONITOR = _kind(
    _object("selector endpoints", jobLabel=TEXT, selector=_SELECTOR, endpoints=_list(_ENDPOINT, 1))
)
_RULE = _object(
    "alert expr labels annotations",
    alert=TEXT,
    expr=TEXT,
    labels=TEXTS,
    annotations=TEXTS,
    **{"for": DURATION},
)
_PROMETHEUS_RULE = _kind(
    _object("groups", groups=_list(_object("name rules", name=TEXT, interval=DURATION, rules=_list(_RULE, 1)), 1))
)

_ROUTE = _kind(
    _object(
        "parentRefs rules",
        parentRefs=_list(_object("name", name=TEXT, namespace=TEXT, sectionName=TEXT), 1),
        hostnames=_list(TEXT),
        rules=_list(
            _object(
                "backendRefs",
                backendRefs=_list(_object("name port", name=TEXT, port={"type": "integer"}), 1),
                timeouts=_object("", request=DURATION, backendRequest=DURATION),
            ),
            1,
        ),
    )
)
_BACKEND_TLS = _kind(
    _object(
        "targetRefs validation",
        targetRefs=_list(_object("group kind name", group={"type": "string"}, kind=TEXT, name=TEXT), 1),
        validation=_object(
            "hostname",
            hostname=TEXT,
            caCertificateRefs=_list(_object("group kind name", group={"type": "string"}, kind=TEXT, name=TEXT), 1),
            wellKnownCACertificates=_one_of("System"),
        ),
    )
)

_PARAMETERS = _list(
    _object("name", name=TEXT, value={"type": "string"}, description=TEXT, valueFrom=_object("path", path=TEXT))
)
_ARTIFACTS = _list(_object("name", name=TEXT, path=TEXT, archive=ANY, optional=FLAG, **{"from": TEXT}))
_INPUTS = _object("", parameters=_PARAMETERS, artifacts=_ARTIFACTS)
_ARGO_TEMPLATE = _object(
    "name",
    name=TEXT,
    inputs=_INPUTS,
    outputs=_INPUTS,
    container=ANY,
    script=ANY,
    volumes=_list(ANY),
    securityContext=ANY,
    automountServiceAccountToken=FLAG,
    activeDeadlineSeconds=COUNT,
    retryStrategy=_object("", limit={"type": ["integer", "string"]}, retryPolicy=TEXT, expression=TEXT),
    dag=_object(
        "tasks",
        tasks=_list(_object("name template", name=TEXT, template=TEXT, depends=TEXT, when=TEXT, arguments=_INPUTS), 1),
    ),
)
_ARGO = _kind(
    _object(
        "entrypoint templates",
        entrypoint=TEXT,
        arguments=_INPUTS,
        serviceAccountName=TEXT,
        automountServiceAccountToken=FLAG,
        executor=_object("", serviceAccountName=TEXT),
        securityContext=ANY,
        activeDeadlineSeconds=COUNT,
        ttlStrategy=_object("", secondsAfterCompletion=COUNT, secondsAfterSuccess=COUNT, secondsAfterFailure=COUNT),
        volumes=_list(ANY),
        templates=_list(_ARGO_TEMPLATE, 1),
    )
)

_TEKTON_PARAMS = _list(
    _object("name", name=TEXT, type=_one_of("string", "array", "object"), description=TEXT, default=ANY)
)
_TEKTON_VALUES = _list(_object("name value", name=TEXT, value=ANY))
_TEKTON_TASK_SPEC = _object(
    "steps",
    description=TEXT,
    params=_TEKTON_PARAMS,
    results=_list(_object("name", name=TEXT, type=_one_of("string", "array", "object"), description=TEXT)),
    workspaces=_list(_object("name", name=TEXT, description=TEXT, optional=FLAG, readOnly=FLAG, mountPath=TEXT)),
    stepTemplate=ANY,
    volumes=_list(ANY),
    steps=_list(
        _object(
            "name image",
            name=TEXT,
            image=TEXT,
            script=TEXT,
            command=_list(TEXT),
            args=_list({"type": "string"}),
            env=_list(ANY),
            workingDir=TEXT,
            timeout=DURATION,
            volumeMounts=_list(ANY),
            computeResources=ANY,
            securityContext=ANY,
        ),
        1,
    ),
)
_TEKTON_PIPELINE = _kind(
    _object(
        "tasks",
        params=_TEKTON_PARAMS,
        workspaces=_list(_object("name", name=TEXT, description=TEXT, optional=FLAG)),
        results=_list(_object("name value", name=TEXT, value=ANY, description=TEXT)),
        tasks=_list(
            _object(
                "name taskRef",
                name=TEXT,
                taskRef=_object("name", name=TEXT, kind=TEXT),
                runAfter=_list(TEXT),
                params=_TEKTON_VALUES,
                workspaces=_list(_object("name workspace", name=TEXT, workspace=TEXT)),
                timeout=DURATION,
            ),
            1,
        ),
    )
)
_TEKTON_RUN = _kind(
    _object(
        "pipelineRef",
        pipelineRef=_object("name", name=TEXT),
        params=_TEKTON_VALUES,
        timeouts=_object("", pipeline=DURATION, tasks=DURATION),
        taskRunTemplate=_object("", serviceAccountName=TEXT, podTemplate=ANY),
        workspaces=_list(
            _object("name", name=TEXT, emptyDir=ANY, persistentVolumeClaim=ANY, secret=ANY, volumeClaimTemplate=ANY)
        ),
    )
)

SCHEMAS: dict[tuple[str, str], Schema] = {
    ("ray.io/v1", "RayCluster"): _RAY_CLUSTER,
    ("monitoring.coreos.com/v1", "PodMonitor"): _POD_MONITOR,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _SERVICE_MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): _PROMETHEUS_RULE,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _ROUTE,
    ("gateway.networking.k8s.io/v1", "BackendTLSPolicy"): _BACKEND_TLS,
    ("argoproj.io/v1alpha1", "WorkflowTemplate"): _ARGO,
    ("tekton.dev/v1", "Task"): _kind(_TEKTON_TASK_SPEC),
    ("tekton.dev/v1", "Pipeline"): _TEKTON_PIPELINE,
    ("tekton.dev/v1", "PipelineRun"): _TEKTON_RUN,
}
