"""The Jobs that the workspace runner makes with the settings it is deployed with keep to the same rules."""

from __future__ import annotations

import json

import pytest

from tests.manifests import rules, strict
from tests.manifests.objects import Object, found, matches, of_kind, overlay, pods
from tests.manifests.test_ways import closed, ways
from workers.workspace_runner.backend import JobRef, JobSpec
from workers.workspace_runner.kubernetes.manifest import job_manifest
from workers.workspace_runner.settings import RunnerSettings

RULES = (
    rules.images_have_versions,
    rules.containers_are_confined,
    rules.resources_are_bounded,
    rules.accounts_are_its_own,
    rules.namespaces_are_restricted,
    rules.priorities_are_there,
)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> list[Object]:
    """The overlay `production` with a Job of its runner."""
    made = overlay("production")
    for name, value in found(made, "ConfigMap", "fleet-runner")["data"].items():
        monkeypatch.setenv(name, value)
    spec = JobSpec(
        ref=JobRef(name="fleet-abc", tenant="default"),
        job_id="a" * 32,
        run_id="b" * 32,
        generation=1,
        kind="run",
        task_id="task",
        execution_id="execution",
        agent_id="agent-dev-1",
        clones=True,
        deadline_seconds=1800,
    )
    manifest = job_manifest(spec, RunnerSettings(), nats_url="tls://nats:4222", model_url="http://model/v1")
    return [*made, json.loads(json.dumps(manifest))]


def test_a_job_keeps_the_rules(objects: list[Object]) -> None:
    strict.validate(objects[-1], "1.36")
    assert [told for rule in RULES for told in rule(objects)] == []


def test_a_job_is_let_out_by_the_policy_and_counted_by_the_quota(objects: list[Object]) -> None:
    (pod,) = pods(objects[-1:])
    ways_out = [(service, port) for way, service, _, port in ways(objects) if way.owner is objects[-1]]
    assert {("fleet-nats", 4222), ("fleet-vllm", 8000)} <= set(ways_out)
    assert closed(objects) == []
    assert pod.namespace == "fleet-agents"
    policies = [one for one in of_kind(objects, "NetworkPolicy") if one["metadata"]["namespace"] == pod.namespace]
    assert sum(matches(one["spec"]["podSelector"], pod.labels) for one in policies) == 2
    counted = found(objects, "ResourceQuota", "fleet-agents")["spec"]["hard"]
    assert {"requests.cpu", "limits.memory", "count/jobs.batch"} <= counted.keys()
    # The quota refuses Pods that do not say what they ask for.
    for container in pod.containers:
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


def test_a_job_that_may_gain_privileges_is_seen(objects: list[Object]) -> None:
    objects[-1]["spec"]["template"]["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    assert list(rules.containers_are_confined(objects)) != []
