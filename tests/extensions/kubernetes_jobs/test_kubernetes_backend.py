"""Jobs as Kubernetes Jobs against an API server that speaks HTTP: how they begin, how they end, and what is watched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.domain.errors import AgentLost, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.job import job_id
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.settings import Settings
from tests.confinement import until
from tests.extensions.kubernetes_jobs.kubernetes_api import KubernetesApiServer, kubernetes_api
from tests.manifests import pod_rules, running
from tests.manifests import rules as of
from tests.manifests.objects import built, found, matches, of_kind, pods
from tests.manifests.rules import RULES
from workers.jobs import Backend, EndReason, JobRef, JobSpec
from workers.workspace_runner.kubernetes_backend import open_kubernetes
from workers.workspace_runner.main import open_backend

SECONDS = 20
NAME = f"fleet-run-{job_id('a')}"
LISTS_AT_FIRST = 4
"""Jobs and Pods: once to learn whether they may be listed, once to be followed."""
SPEC = JobSpec(
    ref=JobRef(name=NAME, tenant="default"), job_id=job_id("a"), run_id=job_id("run"), generation=3, kind="run",
    task_id="t-1", execution_id="e-1", agent_id="agent one", clones=True, deadline_seconds=600,
)  # fmt: skip


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[KubernetesApiServer]:
    async with kubernetes_api(tmp_path / "cluster", node="idle") as server:
        yield server


def lists(cluster: KubernetesApiServer) -> int:
    """How often Jobs or Pods were listed."""
    asked = [path for method, path in cluster.requests if method == "GET" and "watch=" not in path]
    return sum(path.partition("?")[0].endswith(("/jobs", "/pods")) for path in asked)


@asynccontextmanager
async def backend_on(cluster: KubernetesApiServer, tmp_path: Path, **changes: object) -> AsyncGenerator[Backend]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(cluster.kubeconfig()))
    chosen = RunnerSettings(
        image="registry.example/fleet-agent:1", kubeconfig=kubeconfig, namespace="fleet", pull_deadline_seconds=0.3,
        schedule_deadline_seconds=0.3, grace_seconds=1,
    )  # fmt: skip
    settings = Settings(home=tmp_path, nats_url="nats://nats:4222", model_url="http://vllm:8000/v1")
    async with open_backend(settings, chosen.model_copy(update=changes)) as backend, asyncio.timeout(SECONDS):
        yield backend


@pytest.fixture
async def backend(cluster: KubernetesApiServer, tmp_path: Path) -> AsyncIterator[Backend]:
    async with backend_on(cluster, tmp_path) as opened:
        yield opened


async def running_pod(cluster: KubernetesApiServer) -> str:
    await cluster.until(lambda: any(pod["status"]["phase"] == "Running" for pod in cluster.all("pods")))
    return str(cluster.pod_of(NAME)["metadata"]["name"])


async def test_a_job_that_is_there_is_adopted(cluster: KubernetesApiServer, backend: Backend) -> None:
    assert await backend.start(SPEC)
    assert not await backend.start(SPEC)
    (held,) = await backend.held()
    assert (held.job_id, held.run_id, held.generation, held.ended) == (SPEC.job_id, SPEC.run_id, 3, False)
    assert held.ref == SPEC.ref
    await cluster.end(await running_pod(cluster))
    assert (await backend.ended(SPEC.ref)).reason is EndReason.COMPLETED
    await backend.finish(SPEC.ref, failed=False)
    assert cluster.all("jobs") == []
    await backend.stop(SPEC.ref)


Fate = Callable[[KubernetesApiServer, str], Awaitable[None]]
FATES: dict[str, tuple[Fate, EndReason, type[Exception]]] = {
    "out of memory": (lambda c, pod: c.oom_kill(pod), EndReason.OUT_OF_MEMORY, ResourceExhausted),
    "evicted": (lambda c, pod: c.evict(pod), EndReason.EVICTED, AgentLost),
    "lost node": (lambda c, pod: c.lose_node(pod), EndReason.NODE_LOST, AgentLost),
    "exit code": (lambda c, pod: c.end(pod, code=3), EndReason.ERROR, AgentLost),
    "removed": (lambda c, pod: c.remove_job(NAME), EndReason.DELETED, AgentLost),
    "deadline": (lambda c, pod: asyncio.sleep(0), EndReason.DEADLINE, ResourceExhausted),
}


async def test_what_never_begins_is_given_up_in_time(cluster: KubernetesApiServer, backend: Backend) -> None:
    nodes = {"image": EndReason.IMAGE, "config": EndReason.CONFIGURATION, "unschedulable": EndReason.UNSCHEDULABLE}
    for cluster.node, reason in nodes.items():
        await backend.start(SPEC)
        ending = await backend.ended(SPEC.ref)
        assert ending.reason is reason and ending.message
        # It has not ended of itself: whatever is to be kept, its Job goes.
        await backend.finish(SPEC.ref, failed=True)
        assert cluster.all("jobs") == []


@pytest.mark.parametrize("fate", FATES)
async def test_how_a_pod_ended_is_told_by_its_name(fate: str, cluster: KubernetesApiServer, backend: Backend) -> None:
    befalls, reason, fault = FATES[fate]
    await backend.start(replace(SPEC, deadline_seconds=1 if reason is EndReason.DEADLINE else 600))
    waiting = asyncio.create_task(backend.ended(SPEC.ref))
    await befalls(cluster, await running_pod(cluster))
    ending = await waiting
    assert ending.reason is reason
    assert isinstance(ending.fault(), fault)
    assert reason in str(ending.fault())
    await backend.finish(SPEC.ref, failed=True)
    # One that has failed of itself is left to its time to live.
    if reason is EndReason.ERROR:
        assert [job["spec"]["ttlSecondsAfterFinished"] for job in cluster.all("jobs")] == [600]


async def test_a_gap_in_the_history_is_closed_by_another_list_and_bookmarks_keep_a_quiet_watch_young(
    cluster: KubernetesApiServer, backend: Backend
) -> None:
    cluster.bookmark_seconds = 0.05
    await backend.start(SPEC)
    pod = await running_pod(cluster)
    newest = int(cluster.pod_of(NAME)["metadata"]["resourceVersion"])

    def from_there_on() -> bool:
        begun = [path for _, path in cluster.requests if "watch" in path and "/jobs" in path]
        return any(int(path.split("resourceVersion=")[1].split("&")[0]) >= newest for path in begun)

    while not from_there_on():
        await cluster.cut_watches()
        await asyncio.sleep(0.3)
    assert lists(cluster) == LISTS_AT_FIRST
    waiting = asyncio.create_task(backend.ended(SPEC.ref))
    cluster.bookmark_seconds = 60.0
    await cluster.end(pod)
    # What was told is not to be had any more when they come back.
    cluster.forget_history()
    await cluster.cut_watches()
    assert (await waiting).reason is EndReason.COMPLETED
    await until(lambda: lists(cluster) != LISTS_AT_FIRST)


async def test_what_the_server_refuses_names_the_reason(
    cluster: KubernetesApiServer, backend: Backend, tmp_path: Path
) -> None:
    cluster.overloaded = 2
    assert await backend.start(SPEC)
    # Any text becomes a label.
    text, ref = "é" * 80 + "x/y\n\x00", JobRef(name="fleet-label", tenant="default")
    assert await backend.start(replace(SPEC, ref=ref, agent_id=text, task_id="", execution_id=text))
    cluster.overloaded = 100
    with pytest.raises(Unavailable):
        await backend.start(SPEC)
    cluster.overloaded = 0
    with pytest.raises(PreconditionFailed, match="RFC 1123"):
        await backend.start(replace(SPEC, ref=JobRef(name="Not_A_Name", tenant="default")))
    cluster.forbidden = True
    with pytest.raises(PreconditionFailed, match="does not allow"):
        await backend.start(SPEC)
    with pytest.raises(PreconditionFailed, match="does not allow"):
        async with backend_on(cluster, tmp_path):
            raise AssertionError("it opened")
    cluster.forbidden = False


async def test_a_tenant_may_have_a_namespace_and_a_credential_of_its_own(
    cluster: KubernetesApiServer, tmp_path: Path
) -> None:
    ours = {"tenant_namespaces": {"blue": "fleet-blue"}, "git_secrets": {"blue": "blue-git"}}
    async with backend_on(cluster, tmp_path, **ours) as backend:
        await backend.start(SPEC)
        await backend.start(replace(SPEC, ref=JobRef(name=f"{NAME[:-1]}b", tenant="blue")))
        async with asyncio.timeout(SECONDS):
            while len(await backend.held()) < 2:
                await asyncio.sleep(0.02)
        assert {held.ref.tenant for held in await backend.held()} == {"default", "blue"}
    secrets = {
        job["metadata"]["namespace"]: [
            volume["secret"] for volume in job["spec"]["template"]["spec"]["volumes"] if volume["name"] == "git"
        ]
        for job in cluster.all("jobs")
    }
    assert secrets == {"fleet": [], "fleet-blue": [{"secretName": "blue-git", "defaultMode": 0o440}]}


# --- what the runner makes of a job, with the settings that it is deployed with, is what the cluster's rules allow


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
