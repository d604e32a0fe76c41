"""What every manifest of ours must keep to. Each rule tells what is wrong, nothing where all is well."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.manifests.objects import Object, PodView, environment, expanded, found, matches, name_of, of_kind, pods
from tests.manifests.pod_rules import (
    accounts_are_its_own,
    containers_are_confined,
    images_have_versions,
    namespaces_are_restricted,
    priorities_are_there,
    resources_are_bounded,
    rights_are_few,
)
from tests.manifests.running import files_are_mounted, modules_are_there, secrets_are_made, settings_are_known, written
from tests.manifests.strict import schemas_fit

Rule = Callable[[Sequence[Object]], Iterator[str]]
_ADDRESS = re.compile(r"([a-z0-9-]+)\.(fleet[a-z-]*)\.svc:(\d+)")
_OPERATORS = {"fleet-0-1-0-head-svc": {"app.kubernetes.io/name": "fleet-ray-head"}}
"""Services that an operator makes, and the Pods behind them."""


def selectors_match(objects: Sequence[Object]) -> Iterator[str]:
    made = list(pods(objects))
    for one in objects:
        namespace, spec = one["metadata"].get("namespace", ""), one.get("spec", {})
        here = [pod for pod in made if pod.namespace == namespace]
        match one["kind"]:
            case "Service":
                selectors = [{"matchLabels": spec["selector"]}]
                for pod in here:
                    ports = {port["targetPort"] for port in spec["ports"]} - pod.ports().keys()
                    if ports and matches(selectors[0], pod.labels):
                        yield f"{name_of(one)}: {pod} has no port {ports}"
            case "PodDisruptionBudget" | "NetworkPolicy":
                selectors = [spec.get("selector", spec.get("podSelector"))]
                if one["kind"] == "NetworkPolicy" and not selectors[0]:
                    continue
            case "PodMonitor":
                selectors = [spec["selector"]]
                wanted = {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]}
                for pod in here:
                    if matches(selectors[0], pod.labels) and wanted - pod.ports().keys():
                        yield f"{name_of(one)}: {pod} has no port {wanted}"
            case "ServiceMonitor":
                services = [s for s in of_kind(objects, "Service") if s["metadata"]["namespace"] == namespace]
                fit = [s for s in services if matches(spec["selector"], s["metadata"].get("labels", {}))]
                names = {port["name"] for s in fit for port in s["spec"]["ports"]}
                if not fit or any(endpoint["port"] not in names for endpoint in spec["endpoints"]):
                    yield f"{name_of(one)}: fits no Service with its port"
                continue
            case "Deployment" | "StatefulSet":
                if not matches(spec["selector"], spec["template"]["metadata"]["labels"]):
                    yield f"{name_of(one)}: does not choose its own Pods"
                continue
            case _:
                continue
        for selector in selectors:
            if not any(matches(selector, pod.labels) for pod in here):
                yield f"{name_of(one)}: fits no Pod"
    for pod in made:
        for constraint in pod.spec.get("topologySpreadConstraints", ()):
            if not matches(constraint["labelSelector"], pod.labels):
                yield f"{pod}: spreads other Pods than its own"


def traffic_is_denied(objects: Sequence[Object]) -> Iterator[str]:
    for namespace in sorted(one["metadata"]["name"] for one in of_kind(objects, "Namespace")):
        if not any(
            policy["metadata"]["namespace"] == namespace
            and not policy["spec"]["podSelector"]
            and set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
            and not policy["spec"].get("ingress")
            and not policy["spec"].get("egress")
            for policy in of_kind(objects, "NetworkPolicy")
        ):
            yield f"namespace {namespace} denies nothing"


def ports_are_in_policies(objects: Sequence[Object]) -> Iterator[str]:
    policies = of_kind(objects, "NetworkPolicy")
    for pod in pods(objects):
        open_ports = [
            (port["port"], port.get("endPort", port["port"]))
            for policy in policies
            if policy["metadata"]["namespace"] == pod.namespace and matches(policy["spec"]["podSelector"], pod.labels)
            for rule in policy["spec"].get("ingress", ())
            for port in rule.get("ports", ())
        ]
        for name, port in pod.ports().items():
            if not any(low <= port <= high for low, high in open_ports):
                yield f"{pod}: nobody may reach its port {name} ({port})"
    for policy in policies:
        for rule in (*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())):
            if not rule.get("ports") or not (rule.get("from") or rule.get("to")):
                yield f"{name_of(policy)}: a rule for all ports, or for everybody"


def probes_are_real(objects: Sequence[Object]) -> Iterator[str]:
    paths = {"gateway": {"/health", "/ready"}, "vllm": {"/health"}, "nats": {"/healthz"}, "runner": {"/metrics"}}
    for pod in pods(objects):
        if pod.owner["kind"] in ("Job", "CronJob", "DaemonSet"):
            continue
        for container in pod.containers:
            if container in pod.spec.get("initContainers", ()) and container.get("restartPolicy") != "Always":
                continue
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
            if not ports:
                # It serves nobody: when it is gone, it starts anew.
                continue
            for kind in sorted({"startupProbe", "livenessProbe"} - container.keys()):
                yield f"{pod}: {container['name']} has no {kind}"
            here = any(
                port["targetPort"] in ports and matches({"matchLabels": one["spec"]["selector"]}, pod.labels)
                for one in of_kind(objects, "Service")
                for port in one["spec"]["ports"]
            )
            if here and "readinessProbe" not in container:
                yield f"{pod}: {container['name']} is sent calls before it is ready"
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = container.get(kind, {})
                how = probe.get("httpGet") or probe.get("tcpSocket") or probe.get("grpc")
                if kind in container and how is None:
                    yield f"{pod}: {container['name']}'s {kind} asks nothing"
                if how and how["port"] not in ports and how["port"] not in ports.values():
                    yield f"{pod}: {container['name']}'s {kind} asks a port that is none of its own"
                path = str(how.get("path", "")).partition("?")[0] if how else ""
                if path and path not in paths.get(container["name"], {"/health"}):
                    yield f"{pod}: {container['name']} has no {path}"
                if "grpc" in probe:
                    yield from _served(pod, container, probe["grpc"], kind)


def _served(pod: PodView, container: Object, grpc: Object, kind: str) -> Iterator[str]:
    from services.grpc_server import LIVENESS

    told = {one["name"]: one.get("value", "") for one in container.get("env", ())}
    if told.get("FLEET_PROBE_LISTEN", "").rpartition(":")[2] != str(grpc["port"]):
        yield f"{pod}: {kind} speaks gRPC without TLS at a port that does not serve that"
    if (kind == "livenessProbe") != (grpc.get("service", "") == LIVENESS):
        yield f"{pod}: {kind} asks for the wrong service"


def replicas_survive(objects: Sequence[Object]) -> Iterator[str]:
    """More than one replica: a budget, spread; one that ends: time for what its preStop and its leases need."""
    from services.grpc_server import GRACE_SECONDS
    from swe_ai_fleet.settings import Settings

    scaled = {
        one["spec"]["scaleTargetRef"]["name"]: one["spec"].get("minReplicas", one["spec"].get("minReplicaCount", 1))
        for one in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    }
    budgets = of_kind(objects, "PodDisruptionBudget")
    for pod in pods(objects):
        if pod.owner["kind"] not in ("Deployment", "StatefulSet"):
            continue
        name = pod.owner["metadata"]["name"]
        many = pod.owner["spec"].get("replicas", 1) > 1 or scaled.get(name, 1) > 1
        if many and not any(matches(one["spec"]["selector"], pod.labels) for one in budgets):
            yield f"{pod}: no disruption budget"
        if many and not pod.spec.get("topologySpreadConstraints"):
            yield f"{pod}: all of it may be on one node"
        stops = [
            one.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0) for one in pod.containers
        ]
        needed = max(stops) + GRACE_SECONDS
        if name == "fleet-orchestrator":
            needed += Settings.model_fields["lease_seconds"].default
            needed += sum(float(environment(objects, pod, one).get("FLEET_DRAIN_SECONDS", 0)) for one in pod.containers)
        if pod.spec.get("terminationGracePeriodSeconds", 30) < needed:
            yield f"{pod}: is killed before it could end, which takes {needed:g} s"


def tenants_have_their_own(objects: Sequence[Object]) -> Iterator[str]:
    """Each namespace of a tenant's Jobs has all that the shared one has, and the runner knows exactly those."""
    told = found(objects, "ConfigMap", "fleet-runner")["data"]
    shared = told["FLEET_RUNNER_NAMESPACE"]
    named: dict[str, str] = json.loads(told.get("FLEET_RUNNER_TENANT_NAMESPACES", "{}"))
    labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in of_kind(objects, "Namespace")}
    namespaces = {name for name in labels if "fleet/agents" in labels[name]} - {shared}
    if set(named.values()) != namespaces or len(set(named.values())) < len(named):
        yield f"tenants have the namespaces {sorted(named.values())}, and there are {sorted(namespaces)}"
    if strangers := set(json.loads(told.get("FLEET_RUNNER_TENANT_RUNTIME_CLASSES", "{}"))) - set(named):
        yield f"{sorted(strangers)} have a RuntimeClass and no namespace"
    orchestrators = [pod for pod in pods(objects) if pod.labels.get("app.kubernetes.io/name") == "fleet-orchestrator"]
    mounts = {mount["mountPath"] for pod in orchestrators for one in pod.containers for mount in one["volumeMounts"]}
    for tenant in sorted(named):
        if f"/etc/fleet/git/{tenant}" not in mounts:
            yield f"orchestrators cannot read private repositories of {tenant}"

    def there(namespace: str) -> set[tuple[str, str]]:
        own = [one for one in objects if one["metadata"].get("namespace") == namespace and one["kind"] != "Job"]
        return {(one["kind"], one["metadata"]["name"]) for one in own}

    for namespace in sorted(namespaces):
        for kind, name in sorted(there(shared) - there(namespace)):
            yield f"{namespace} has no {kind} {name}"
        for name in {secret for place, secret in written() if place == shared}:
            if (namespace, name) not in written():
                yield f"`fleet init` writes no secret {name} for {namespace}"
    for one in sorted(namespaces):
        if labels[one] != labels[shared]:
            yield f"{one} has other labels than {shared}"


def _fits(peer: Object, policy: Object, other: PodView, labels: dict[str, dict[str, str]]) -> bool:
    if "ipBlock" in peer:
        return False
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"], labels[other.namespace]):
            return False
    elif policy["metadata"]["namespace"] != other.namespace:
        return False
    return matches(peer.get("podSelector"), other.labels)


def _lets(objects: Sequence[Object], direction: str, pod: PodView, other: PodView, port: int) -> bool:
    """Whether a policy of `pod` lets traffic to (`egress`) or from (`ingress`) another through, at the port served."""
    labels = {
        one["metadata"]["name"]: {"kubernetes.io/metadata.name": one["metadata"]["name"], **one["metadata"]["labels"]}
        for one in of_kind(objects, "Namespace")
    }
    side = "to" if direction == "egress" else "from"
    return any(
        any(one["port"] <= port <= one.get("endPort", one["port"]) for one in rule["ports"])
        and any(_fits(peer, policy, other, labels) for peer in rule.get(side, ()))
        for policy in of_kind(objects, "NetworkPolicy")
        if policy["metadata"]["namespace"] == pod.namespace and matches(policy["spec"]["podSelector"], pod.labels)
        for rule in policy["spec"].get(direction, ())
    )


def ways(objects: Sequence[Object]) -> Iterator[tuple[PodView, str, str, int]]:
    """Pod, service, namespace and port of each address in somebody's settings; hosts on Ray get the orchestrator's."""
    every = list(pods(objects))
    workers = [one for one in every if one.labels["app.kubernetes.io/name"] == "fleet-ray-worker"]
    for pod in every:
        told: list[str] = []
        for one in pod.containers:
            variables = environment(objects, pod, one)
            told += (expanded(text, variables) for text in (*variables.values(), *one.get("args", ())))
        with_settings = [pod, *(workers if pod.labels.get("app.kubernetes.io/name") == "fleet-orchestrator" else ())]
        for value in told:
            for service, namespace, port in _ADDRESS.findall(value):
                yield from ((one, service, namespace, int(port)) for one in with_settings)


def ways_are_open(objects: Sequence[Object]) -> Iterator[str]:
    services = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in of_kind(objects, "Service")}
    for pod, name, namespace, port in ways(objects):
        if name == "fleet-vllm" and (namespace, name) not in services:
            # The overlay for laptops has no model.
            continue
        service: Any = services.get((namespace, name))
        if service is None and name not in _OPERATORS:
            yield f"{pod}: there is no {name}.{namespace}"
            continue
        spec: Object = service["spec"] if service else {"selector": _OPERATORS[name], "ports": [{"port": port}]}
        served: list[Object] = [one for one in spec["ports"] if one["port"] == port]
        if not served:
            yield f"{pod}: {name} has no port {port}"
            continue
        for other in pods(objects):
            if other.namespace != namespace or not matches({"matchLabels": spec["selector"]}, other.labels):
                continue
            inside: Any = served[0].get("targetPort", port)
            inside = other.ports()[inside] if isinstance(inside, str) else inside
            if not _lets(objects, "egress", pod, other, inside):
                yield f"{pod}: is not let out to {name}:{inside}"
            if not _lets(objects, "ingress", other, pod, inside):
                yield f"{pod}: is not let in by {name}:{inside}"


RULES: tuple[Rule, ...] = (
    images_have_versions,
    containers_are_confined,
    resources_are_bounded,
    accounts_are_its_own,
    rights_are_few,
    namespaces_are_restricted,
    priorities_are_there,
    selectors_match,
    traffic_is_denied,
    ports_are_in_policies,
    probes_are_real,
    replicas_survive,
    tenants_have_their_own,
    schemas_fit,
    ways_are_open,
    settings_are_known,
    files_are_mounted,
    modules_are_there,
    secrets_are_made,
)
