"""What settings name as somebody's address, policies let through: out of the one Pod and into the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.manifests.objects import OVERLAYS, Object, PodView, environment, found, matches, of_kind, overlay, pods

_ADDRESS = re.compile(r"([a-z0-9-]+)\.(fleet[a-z-]*)\.svc:(\d+)")
_OPERATORS = {"fleet-head-svc": {"app.kubernetes.io/name": "fleet-ray-head"}}
"""Services that an operator makes, and the Pods behind them."""


def _sides(rule: Object, side: str) -> list[Object]:
    return rule.get(side, [])


def _fits(peer: Object, policy: Object, other: PodView, labels: dict[str, dict[str, str]]) -> bool:
    if "ipBlock" in peer:
        return False
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"], labels[other.namespace]):
            return False
    elif policy["metadata"]["namespace"] != other.namespace:
        return False
    return matches(peer.get("podSelector"), other.labels)


def lets(objects: Sequence[Object], direction: str, pod: PodView, other: PodView, port: int) -> bool:
    """Whether a policy of `pod` lets traffic to (`egress`) or from (`ingress`) another through, at the port served."""
    labels = {
        one["metadata"]["name"]: {"kubernetes.io/metadata.name": one["metadata"]["name"], **one["metadata"]["labels"]}
        for one in of_kind(objects, "Namespace")
    }
    side = "to" if direction == "egress" else "from"
    for policy in of_kind(objects, "NetworkPolicy"):
        if policy["metadata"]["namespace"] != pod.namespace or not matches(policy["spec"]["podSelector"], pod.labels):
            continue
        for rule in policy["spec"].get(direction, ()):
            open_here = any(one["port"] <= port <= one.get("endPort", one["port"]) for one in rule["ports"])
            if open_here and any(_fits(peer, policy, other, labels) for peer in _sides(rule, side)):
                return True
    return False


def ways(objects: Sequence[Object]) -> Iterator[tuple[PodView, str, str, int]]:
    """Pod, service, namespace and port of each address in somebody's settings; hosts on Ray get the orchestrator's."""
    every = list(pods(objects))
    for pod in every:
        told = [value for one in pod.containers for value in environment(objects, pod, one).values()]
        told += [argument for one in pod.containers for argument in one.get("args", ())]
        for value in told:
            for service, namespace, port in _ADDRESS.findall(value):
                yield pod, service, namespace, int(port)
                if pod.labels["app.kubernetes.io/name"] == "fleet-orchestrator":
                    for worker in every:
                        if worker.labels["app.kubernetes.io/name"] == "fleet-ray-worker":
                            yield worker, service, namespace, int(port)


def closed(objects: Sequence[Object]) -> list[str]:
    """Ways that lead nowhere, or against a policy."""
    told: list[str] = []
    services = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in of_kind(objects, "Service")}
    for pod, name, namespace, port in ways(objects):
        if name == "fleet-vllm" and (namespace, name) not in services:
            # The overlay for laptops has no model.
            continue
        service: Any = services.get((namespace, name))
        if service is None and name not in _OPERATORS:
            told.append(f"{pod}: there is no {name}.{namespace}")
            continue
        spec: Object = service["spec"] if service else {"selector": _OPERATORS[name], "ports": [{"port": port}]}
        chosen: Object = {"matchLabels": spec["selector"]}
        served: list[Object] = [one for one in spec["ports"] if one["port"] == port]
        if not served:
            told.append(f"{pod}: {name} has no port {port}")
            continue
        for other in pods(objects):
            if other.namespace != namespace or not matches(chosen, other.labels):
                continue
            inside: Any = served[0].get("targetPort", port)
            inside = other.ports()[inside] if isinstance(inside, str) else inside
            if not lets(objects, "egress", pod, other, inside):
                told.append(f"{pod}: is not let out to {name}:{inside}")
            if not lets(objects, "ingress", other, pod, inside):
                told.append(f"{pod}: is not let in by {name}:{inside}")
    return sorted(set(told))


@pytest.mark.parametrize("name", [*OVERLAYS, "tests"])
def test_every_address_can_be_reached(name: str) -> None:
    objects = overlay(name)
    found_ways = {(str(pod), service) for pod, service, _, _ in ways(objects)}
    assert len(found_ways) >= 10
    assert closed(objects) == []


@pytest.mark.parametrize(
    "policy", ["to-context", "context", "to-nats", "nats", "ray", "to-models", "fleet-vllm", "gateway"]
)
def test_a_policy_that_is_missing_closes_a_way(policy: str) -> None:
    objects = overlay("production")
    objects.remove(found(objects, "NetworkPolicy", policy))
    assert closed(objects) != []


def test_an_address_of_nobody_is_seen() -> None:
    objects = overlay("production")
    found(objects, "Service", "fleet-context")["spec"]["ports"][0]["port"] = 50066
    found(objects, "Service", "fleet-nats")["metadata"]["name"] = "nats"
    told = closed(objects)
    assert any("has no port 50056" in one for one in told)
    assert any("there is no fleet-nats.fleet" in one for one in told)
