"""What the runner makes of a job, with the settings that it is deployed with, is what the cluster's rules allow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.settings import Settings
from tests.extensions.kubernetes_jobs.kubernetes_api import kubernetes_api
from tests.manifests import pod_rules, running
from tests.manifests import rules as of
from tests.manifests.objects import built, found, matches, of_kind, pods
from tests.manifests.rules import RULES
from workers.jobs import JobRef, JobSpec
from workers.workspace_runner.kubernetes_backend import open_kubernetes


@pytest.mark.parametrize(
    ("overlay", "tenant", "image", "place"),
    [
        ("production", "default", f"registry.example.org/team/image@sha256:{'0' * 64}", ("fleet-agents", "")),
        ("user namespaces", "default", "", ("fleet-agents", "")),
        ("tenants", "acme", "", ("fleet-agents-acme", "kata")),
        ("tenants", "another", "", ("fleet-agents", "")),
    ],
)
async def test_a_job_of_the_runner_keeps_the_rules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overlay: str, tenant: str, image: str, place: tuple[str, str]
) -> None:
    """With the settings that it is deployed with: it may call what it needs, and the quota counts it."""
    objects = built(overlay)
    for name, value in found(objects, "ConfigMap", "fleet-runner")["data"].items():
        monkeypatch.setenv(name, value)
    spec = JobSpec(
        ref=JobRef(name="fleet-abc", tenant=tenant), job_id="a" * 32, run_id="b" * 32, generation=1, kind="run",
        task_id="task", execution_id="execution", agent_id="agent-dev-1", clones=True, deadline_seconds=1800,
    )  # fmt: skip
    async with kubernetes_api(tmp_path / "cluster", node="idle") as cluster:
        (tmp_path / "kubeconfig").write_text(json.dumps(cluster.kubeconfig()))
        chosen = RunnerSettings(kubeconfig=tmp_path / "kubeconfig")
        fleet = Settings(home=tmp_path, nats_url="tls://nats:4222", model_url="http://model/v1")
        async with open_kubernetes(fleet, chosen) as backend:
            await backend.start(replace(spec, image=image))
        (job,) = cluster.all("jobs")
    objects.append(job)
    # These know what is written by hand.
    others = {running.settings_are_known, running.files_are_mounted, running.secrets_are_made}
    assert [told for rule in RULES if rule not in others for told in rule(objects)] == []
    (pod,) = pods([job])
    assert (pod.namespace, pod.spec.get("runtimeClassName", "")) == place
    out = {(service, port) for way, service, _, port in of.ways(objects) if way.owner is job}
    assert {("fleet-nats", 4222), ("fleet-vllm-each", 8000)} <= out
    policies = [one for one in of_kind(objects, "NetworkPolicy") if one["metadata"]["namespace"] == pod.namespace]
    assert sum(matches(one["spec"]["podSelector"], pod.labels) for one in policies) == 2
    (counted,) = [
        one["spec"]["hard"] for one in of_kind(objects, "ResourceQuota") if one["metadata"]["namespace"] == place[0]
    ]
    assert {"requests.cpu", "limits.memory", "count/jobs.batch"} <= counted.keys()
    context = job["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    node = found(objects, "Job", "fleet-node-check") if overlay == "user namespaces" else None
    assert node is None or context == node["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    context["allowPrivilegeEscalation"] = True
    assert list(pod_rules.containers_are_confined(objects)) != []
