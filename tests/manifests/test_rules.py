"""Every overlay keeps to every rule, and every rule sees a manifest that does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.manifests import rules
from tests.manifests.objects import OVERLAYS, Object, found, overlay, pods
from tests.manifests.rules import RULES, Rule


@pytest.mark.parametrize("name", [*OVERLAYS, "tests"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_overlay_keeps_the_rule(name: str, rule: Rule) -> None:
    objects = overlay(name)
    assert len(objects) > 30
    assert list(rule(objects)) == []


def _container(objects: Sequence[Object], name: str) -> Object:
    (one,) = [one for pod in pods(objects) for one in pod.containers if one["name"] == name]
    return one


def _pod(objects: Sequence[Object], name: str) -> Object:
    return found(objects, "Deployment", name)["spec"]["template"]["spec"]


def _policy(objects: Sequence[Object], name: str) -> Object:
    return next(one for one in objects if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == name)


def _without(objects: list[Object], kind: str, name: str) -> None:
    objects.remove(found(objects, kind, name))


Break = Callable[[list[Object]], object]
BROKEN: list[tuple[Rule, str, Break]] = [
    (rules.images_have_versions, "latest", lambda o: _container(o, "gateway").update(image="r.example.org/g:latest")),
    (rules.images_have_versions, "no tag", lambda o: _container(o, "nats").update(image="docker.io/library/nats")),
    (
        rules.images_have_versions,
        "image of Jobs",
        lambda o: found(o, "ConfigMap", "fleet-runner")["data"].update(FLEET_RUNNER_IMAGE="fleet-agent"),
    ),
    (
        rules.containers_are_confined,
        "writable root",
        lambda o: _container(o, "context")["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    (
        rules.containers_are_confined,
        "capability",
        lambda o: _container(o, "ray-worker")["securityContext"].update(
            capabilities={"drop": ["ALL"], "add": ["NET_RAW"]}
        ),
    ),
    (rules.containers_are_confined, "host network", lambda o: _pod(o, "fleet-gateway").update(hostNetwork=True)),
    (
        rules.containers_are_confined,
        "root",
        lambda o: _pod(o, "fleet-gateway")["securityContext"].update(runAsNonRoot=False),
    ),
    (
        rules.containers_are_confined,
        "seccomp",
        lambda o: _pod(o, "fleet-runner")["securityContext"].pop("seccompProfile"),
    ),
    (
        rules.containers_are_confined,
        "host path",
        lambda o: _pod(o, "fleet-runner")["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
    ),
    (
        rules.containers_are_confined,
        "autoscaler",
        lambda o: found(o, "RayCluster", "fleet")["spec"]["autoscalerOptions"].pop("securityContext"),
    ),
    (
        rules.resources_are_bounded,
        "more than the limit",
        lambda o: _container(o, "runner")["resources"]["requests"].update(memory="2Gi"),
    ),
    (rules.resources_are_bounded, "no limit", lambda o: _container(o, "nats")["resources"].pop("limits")),
    (
        rules.accounts_are_its_own,
        "token mounted",
        lambda o: _pod(o, "fleet-gateway").update(automountServiceAccountToken=True),
    ),
    (
        rules.accounts_are_its_own,
        "default account",
        lambda o: _pod(o, "fleet-context").pop("serviceAccountName"),
    ),
    (rules.accounts_are_its_own, "nobody's", lambda o: _without(o, "ServiceAccount", "fleet-agent")),
    (
        rules.rights_are_few,
        "secrets",
        lambda o: found(o, "Role", "fleet-runner")["rules"].append(
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
        ),
    ),
    (
        rules.rights_are_few,
        "every verb",
        lambda o: found(o, "Role", "fleet-runner")["rules"][0].update(verbs=["*"]),
    ),
    (
        rules.rights_are_few,
        "somebody else",
        lambda o: found(o, "RoleBinding", "fleet-runner")["subjects"][0].update(name="fleet-ray-worker"),
    ),
    (
        rules.rights_are_few,
        "whole cluster",
        lambda o: o.append({"kind": "ClusterRole", "metadata": {"name": "x"}, "rules": []}),
    ),
    (
        rules.namespaces_are_restricted,
        "privileged",
        lambda o: found(o, "Namespace", "fleet")["metadata"]["labels"].update(
            {"pod-security.kubernetes.io/enforce": "privileged"}
        ),
    ),
    (
        rules.namespaces_are_restricted,
        "elsewhere",
        lambda o: found(o, "Deployment", "fleet-gateway")["metadata"].update(namespace="default"),
    ),
    (rules.priorities_are_there, "none", lambda o: _without(o, "PriorityClass", "fleet-state")),
    (
        rules.selectors_match,
        "budget",
        lambda o: found(o, "PodDisruptionBudget", "fleet-nats")["spec"]["selector"]["matchLabels"].update(x="y"),
    ),
    (
        rules.selectors_match,
        "service",
        lambda o: found(o, "Service", "fleet-gateway")["spec"]["selector"].update(
            {"app.kubernetes.io/name": "gateway"}
        ),
    ),
    (
        rules.selectors_match,
        "service's port",
        lambda o: found(o, "Service", "fleet-gateway")["spec"]["ports"][0].update(targetPort="http"),
    ),
    (
        rules.selectors_match,
        "policy",
        lambda o: _policy(o, "ray")["spec"]["podSelector"]["matchLabels"].update({"fleet/ray-node": "yes"}),
    ),
    (
        rules.selectors_match,
        "monitored port",
        lambda o: found(o, "PodMonitor", "fleet")["spec"]["podMetricsEndpoints"][0].update(port="prometheus"),
    ),
    (
        rules.selectors_match,
        "spread",
        lambda o: _pod(o, "fleet-gateway")["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].update(
            x="y"
        ),
    ),
    (
        rules.values_of_selectors_exist,
        "misspelt",
        lambda o: _policy(o, "to-nats")["spec"]["podSelector"]["matchExpressions"][0]["values"].append("fleet-contxt"),
    ),
    (rules.traffic_is_denied, "open", lambda o: o.remove(_policy(o, "denied"))),
    (
        rules.traffic_is_denied,
        "egress",
        lambda o: _policy(o, "denied")["spec"].update(policyTypes=["Ingress"]),
    ),
    (rules.ports_are_in_policies, "unreachable", lambda o: o.remove(_policy(o, "context"))),
    (
        rules.ports_are_in_policies,
        "all ports",
        lambda o: _policy(o, "gateway")["spec"]["ingress"][0].pop("ports"),
    ),
    (
        rules.ports_are_in_policies,
        "everybody",
        lambda o: _policy(o, "gateway")["spec"]["ingress"][0].pop("from"),
    ),
    (
        rules.probes_are_real,
        "port",
        lambda o: _container(o, "context")["livenessProbe"]["grpc"].update(port=50055),
    ),
    (
        rules.probes_are_real,
        "TLS port",
        lambda o: _container(o, "context")["readinessProbe"]["grpc"].update(port=50056),
    ),
    (
        rules.probes_are_real,
        "path",
        lambda o: _container(o, "gateway")["readinessProbe"]["httpGet"].update(path="/readyz"),
    ),
    (rules.probes_are_real, "readiness", lambda o: _container(o, "gateway").pop("readinessProbe")),
    (rules.probes_are_real, "start", lambda o: _container(o, "vllm").pop("startupProbe")),
    (
        rules.probes_are_real,
        "restarted for NATS",
        lambda o: _container(o, "orchestrator")["livenessProbe"]["grpc"].pop("service"),
    ),
    (
        rules.targets_exist,
        "nothing to scale",
        lambda o: found(o, "HorizontalPodAutoscaler", "fleet-gateway")["spec"]["scaleTargetRef"].update(name="web"),
    ),
    (
        rules.targets_exist,
        "no such metric",
        lambda o: found(o, "HorizontalPodAutoscaler", "fleet-gateway")["spec"]["metrics"][0]["resource"].update(
            name="queue"
        ),
    ),
    (
        rules.targets_exist,
        "two masters",
        lambda o: found(o, "Deployment", "fleet-orchestrator")["spec"].update(replicas=2),
    ),
    (
        rules.targets_exist,
        "no such container",
        lambda o: found(o, "HorizontalPodAutoscaler", "fleet-orchestrator")["spec"]["metrics"][0][
            "containerResource"
        ].update(container="main"),
    ),
    (rules.replicas_survive, "budget", lambda o: _without(o, "PodDisruptionBudget", "fleet-context")),
    (
        rules.replicas_survive,
        "grace",
        lambda o: _pod(o, "fleet-orchestrator").update(terminationGracePeriodSeconds=20),
    ),
    (
        rules.quotas_have_room,
        "more than there is room for",
        lambda o: found(o, "ConfigMap", "fleet-runner")["data"].update(FLEET_RUNNER_CONCURRENCY="150"),
    ),
    (rules.replicas_survive, "spread", lambda o: _pod(o, "fleet-runner").pop("topologySpreadConstraints")),
]


@pytest.mark.parametrize(("rule", "what", "broken"), BROKEN, ids=lambda part: getattr(part, "__name__", str(part)))
def test_the_rule_sees_what_breaks_it(rule: Rule, what: str, broken: Break) -> None:
    objects = overlay("production")
    broken(objects)
    assert list(rule(objects)) != [], what


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)
