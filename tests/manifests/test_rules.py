"""Every overlay and every site keeps to every rule, and every rule sees a manifest that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.manifests import pod_rules, running, strict
from tests.manifests import rules as of
from tests.manifests.objects import DEPLOY, EVERYTHING, OVERLAYS, SITES, Object, built, pods
from tests.manifests.rules import RULES, Rule
from tests.tables import table

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"


QUICK = ("production", "tenants", "extras", "jobs", "user namespaces", "many models")
SITES_AND_OVERLAYS = [pytest.param(one, marks=[pytest.mark.slow] if one not in QUICK else []) for one in EVERYTHING]


@pytest.mark.parametrize("name", SITES_AND_OVERLAYS)
def test_the_rules_are_kept(name: str) -> None:
    objects = built(name)
    assert len(objects) > 30 and len({(str(pod), service) for pod, service, *_ in of.ways(objects)}) >= 8
    assert [f"{rule.__name__}: {told}" for rule in RULES for told in rule(objects)] == []


def test_every_component_is_in_something_that_is_tested_and_every_rule_is_broken_once() -> None:
    taken = {component for _, *components in SITES.values() for component in components}
    overlays = [DEPLOY / "overlays" / name / "kustomization.yaml" for name in OVERLAYS]
    taken |= {Path(line).name for path in overlays for line in path.read_text().split() if "components/" in line}
    assert taken == {path.name for path in (DEPLOY / "components").iterdir()}
    assert {rule for rule, *_ in BROKEN} == set(RULES)


GONE = object()
POD, DEPLOYMENT = "spec template spec", "Deployment fleet-"
LOCAL = {"type": "Localhost", "localhostProfile": "fleet/agent.json"}
ENFORCED = {"pod-security.kubernetes.io/enforce": "privileged"}
READS_SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
# A rule, an object (or a container by its name), the way to a value in it, and what stands there instead: `GONE` takes
# it away, a way that ends in `+` adds to a list, the empty way is the object itself.
BROKEN: list[tuple[Rule, str, str, Any]] = [
    (pod_rules.images_have_versions, "container gateway", "image", "r.example.org/g:latest"),
    (pod_rules.images_have_versions, "ConfigMap fleet-runner", "data FLEET_RUNNER_IMAGE", "fleet-agent"),
    (pod_rules.containers_are_confined, "container context", "securityContext readOnlyRootFilesystem", False),
    (pod_rules.containers_are_confined, "container ray-worker", "securityContext capabilities add", ["NET_RAW"]),
    (pod_rules.containers_are_confined, f"{DEPLOYMENT}gateway", f"{POD} hostNetwork", True),
    (pod_rules.containers_are_confined, f"{DEPLOYMENT}runner", f"{POD} volumes +", {"name": "x", "hostPath": {}}),
    (pod_rules.containers_are_confined, "container context", "securityContext seccompProfile", LOCAL),
    (pod_rules.resources_are_bounded, "container nats", "resources limits", GONE),
    (pod_rules.accounts_are_its_own, f"{DEPLOYMENT}gateway", f"{POD} automountServiceAccountToken", True),
    (pod_rules.accounts_are_its_own, "ServiceAccount fleet-agent", "", GONE),
    (pod_rules.rights_are_few, "Role fleet-runner", "rules +", READS_SECRETS),
    (pod_rules.rights_are_few, "RoleBinding fleet-runner", "subjects 0 name", "fleet-ray-worker"),
    (pod_rules.namespaces_are_restricted, "Namespace fleet", "metadata labels", ENFORCED),
    (pod_rules.namespaces_are_restricted, f"{DEPLOYMENT}gateway", "metadata namespace", "default"),
    (pod_rules.priorities_are_there, "PriorityClass fleet-state", "", GONE),
    (of.selectors_match, "PodDisruptionBudget fleet-nats", "spec selector matchLabels x", "y"),
    (of.selectors_match, f"{DEPLOYMENT}gateway", f"{POD} topologySpreadConstraints 0 labelSelector matchLabels x", "y"),
    (of.traffic_is_denied, "NetworkPolicy denied", "", GONE),
    (of.ports_are_in_policies, "NetworkPolicy context", "", GONE),
    (of.ports_are_in_policies, "NetworkPolicy gateway", "spec ingress 0 ports", GONE),
    (of.probes_are_real, "container context", "livenessProbe grpc port", 50055),
    (of.probes_are_real, "container gateway", "readinessProbe", GONE),
    # It would be restarted where NATS is down.
    (of.probes_are_real, "container orchestrator", "livenessProbe grpc service", GONE),
    (of.replicas_survive, "PodDisruptionBudget fleet-context", "", GONE),
    (of.replicas_survive, f"{DEPLOYMENT}orchestrator", f"{POD} terminationGracePeriodSeconds", 20),
    (of.tenants_have_their_own, "ConfigMap fleet-runner", "data FLEET_RUNNER_TENANT_NAMESPACES", '{"acme": "acme"}'),
    (strict.schemas_fit, f"{DEPLOYMENT}gateway", "spec replica", 2),
    (strict.schemas_fit, "RayCluster fleet-0-1-0", f"spec workerGroupSpecs 0 {POD[5:]} serviceAcountName", "x"),
    *(
        (of.ways_are_open, f"NetworkPolicy {policy}", "", GONE)
        for policy in ("to-context", "context", "nats", "to-models", "gateway")
    ),
    (of.ways_are_open, "Service fleet-context", "spec ports 0 port", 50066),
    (running.settings_are_known, "container orchestrator", "env +", {"name": "FLEET_NATS_ADRESS", "value": "x"}),
    (running.files_are_mounted, "container orchestrator", "volumeMounts", [{"name": "x", "mountPath": "/x"}]),
    (running.files_are_mounted, "ConfigMap fleet-agent-settings", "data FLEET_NATS_CA", "/etc/fleet/ca.pem"),
    (running.modules_are_there, "container orchestrator", "args 2", "services.orchestrator.mian"),
    (running.secrets_are_made, "container vllm", "env 1 valueFrom secretKeyRef", {"name": "fleet-model", "key": "k"}),
    (running.secrets_are_made, f"{DEPLOYMENT}gateway", f"{POD} volumes 0 secret", {"secretName": "fleet-tls"}),
]


@table("rule, of_what, way, value", BROKEN)
def test_a_rule_sees_what_breaks_it(rule: Rule, of_what: str, way: str, value: Any) -> None:
    objects = built("production")
    kind, name = of_what.split()
    if kind == "container":
        (part,) = [one for pod in pods(objects) for one in pod.containers if one["name"] == name]
    else:
        part = next(one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
    *steps, last = way.split() or [""]
    place: Any = part
    for step in steps:
        place = place[int(step)] if step.isdigit() else place[step]
    match last:
        case "":
            objects.remove(part)
        case "+":
            place.append(value)
        case _ if value is GONE:
            del place[last]
        case _:
            place[int(last) if last.isdigit() else last] = value
    assert list(rule(objects)) != []


def _with(part: Any, key: str) -> list[Object]:
    """Every table in it that has a key."""
    inside: Any = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    own = [cast("Object", part)] if isinstance(part, dict) and key in part else []
    return own + [found for one in inside for found in _with(one, key)]


def test_pipelines_fit_the_schemas_and_show_their_token_to_the_step_that_submits_only() -> None:
    """The other one works on what strangers wrote. Files of the secret are read by whoever has the volume."""
    texts = [path.read_text() for path in sorted(EXAMPLES.rglob("*.yaml"))]
    parts = [one for text in texts for one in yaml.safe_load_all(text) if one and "kustomize" not in one["apiVersion"]]
    assert {one["kind"] for one in parts} >= {"Job", "WorkflowTemplate", "Task", "Pipeline", "PipelineRun"}
    assert list(strict.schemas_fit(parts)) == []
    containers, volumes = list(_with(parts, "image")), list(_with(parts, "secretName"))
    submits = [one for one in containers if "submit.sh" in json.dumps(one)]
    assert (len(submits), len(containers), len(volumes)) == (3, 6, 3)
    for one in containers:
        named = [
            each["valueFrom"]["secretKeyRef"] for each in one["env"] if "secretKeyRef" in each.get("valueFrom", {})
        ]
        if one in submits:
            assert {"name": "fleet-client", "key": "token"} in named
        else:
            assert named == [] and "client" not in {mount["name"] for mount in one["volumeMounts"]}
    assert all(one["items"] == [{"key": "ca.crt", "path": "ca.crt"}] for one in volumes)
