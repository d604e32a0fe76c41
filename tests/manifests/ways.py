"""What settings name as somebody's address, policies let through: out of the one Pod and into the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tests.manifests.objects import Object, PodView, environment, matches, of_kind, pods

_ADDRESS = re.compile(r"([a-z0-9-]+)\.(fleet[a-z-]*)\.svc:(\d+)")
_OPERATORS = {"fleet-head-svc": {"app.kubernetes.io/name": "fleet-ray-head"}}
"""Services that an operator makes, and the Pods behind them."""


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
        told = [value for one in pod.containers for value in environment(objects, pod, one).values()]
        told += [argument for one in pod.containers for argument in one.get("args", ())]
        with_settings = [pod, *(workers if pod.labels["app.kubernetes.io/name"] == "fleet-orchestrator" else ())]
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
