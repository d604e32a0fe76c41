"""What containers are told is what their programs take: settings, the words of Ray and NATS, alerts, dashboards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from services.gateway.main import KEYS_MAX_BYTES
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BYTES
from swe_ai_fleet.orchestrator.recipes import RECIPES_BYTES
from swe_ai_fleet.settings import Settings
from tests.manifests.alerts import COPY, SOURCE, wrapped
from tests.manifests.objects import DEPLOY, Object, built, environment, found, matches, of_kind, pods
from tests.manifests.pod_rules import PROFILE
from tests.manifests.running import ours, written


@pytest.mark.parametrize("name", ["production", "tests"])
def test_settings_are_taken(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    monkeypatch.chdir(tmp_path)
    looked_at: set[str] = set()
    for _, container, told in ours(built(name)):
        with monkeypatch.context() as patched:
            for variable in [one for one in os.environ if one.startswith(("FLEET_", "NATS_", "RAY_"))]:
                patched.delenv(variable)
            for variable, value in told.items():
                named = variable.endswith("_FILE") and variable[6:-5].lower() in Settings.model_fields
                patched.setenv(variable, str(secret) if named else value)
            taken = Settings()
            for kind in load_parts("settings"):
                kind()
            if container["name"] == "orchestrator":
                assert (taken.ray_resources, taken.sandbox, taken.loopback) == ({"agent_host": 1}, "landlock", False)
                assert (taken.ray_token, taken.context_token, taken.http_address) == ("secret", "secret", "")
            if container["name"] == "gateway":
                assert taken.orchestrator_token == "secret"
            looked_at.add(container["name"])
    assert {"orchestrator", "gateway", "context"} <= looked_at


@pytest.mark.parametrize("name", ["laptop", "production"])
def test_nats_takes_its_configuration(name: str, tmp_path: Path) -> None:
    objects = built(name)
    config: str = found(objects, "ConfigMap", "fleet-nats")["data"]["nats.conf"]
    (tmp_path / "auth").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "auth" / "accounts.conf").write_bytes(written()["fleet", "fleet-nats"]["accounts.conf"])
    for key, file in (("ca.crt", "ca.crt"), ("nats.crt", "tls.crt"), ("nats.key", "tls.key")):
        (tmp_path / file).write_bytes(written()["fleet", "fleet-tls"][key])
    config = config.replace("/etc/nats/tls", str(tmp_path)).replace("store_dir: /data", f"store_dir: {tmp_path}/data")
    command = [str(Path(sys.executable).with_name("nats-server")), "-t", "-c", str(tmp_path / "config" / "nats.conf")]
    (pod,) = pods([found(objects, "StatefulSet", "fleet-nats")])
    told = os.environ | environment(objects, pod, pod.containers[0]) | {"POD_NAME": "fleet-nats-0"}
    for text, taken in ((config, True), (config.replace("max_file_store", "max_file_stoer"), False)):
        (tmp_path / "config" / "nats.conf").write_text(text)
        run = subprocess.run(command, env=told, capture_output=True, text=True, timeout=30, check=False)
        assert (run.returncode == 0) is taken, run.stderr
    servers = found(objects, "StatefulSet", "fleet-nats")["spec"]["replicas"]
    settings = found(objects, "ConfigMap", "fleet-settings")["data"]
    assert settings["FLEET_STREAM_REPLICAS"] == str(servers)
    # NATS sets limits of streams aside at once: those of the settings, and those of buckets.
    wanted = [int(value) for name, value in settings.items() if name.endswith("_BYTES")]
    buckets = RECIPES_BYTES + TEST_RUNS_BYTES + KEYS_MAX_BYTES
    stored = re.search(r"max_file_store: (\S+)", config)
    assert stored is not None
    room = stored[1].replace("$MAX_FILE_STORE", told.get("MAX_FILE_STORE", ""))
    assert len(wanted) == 3 and sum(wanted) + buckets <= int(room.removesuffix("GB")) * 10**9


@pytest.mark.parametrize("name", ["laptop", "production"])
def test_ray_takes_its_options_and_sees_what_workers_offer(name: str) -> None:
    """Ray's own reading of the RayCluster: what its autoscaler believes that a worker has."""
    import ray
    from ray.autoscaler._private.kuberay import autoscaling_config
    from ray.scripts.scripts import start

    objects = built(name)
    cluster = found(objects, "RayCluster", "fleet-0-1-0")
    assert cluster["spec"]["rayVersion"] == ray.__version__
    pod = found(objects, "Deployment", "fleet-orchestrator")["spec"]["template"]["spec"]
    (sidecar,), (orchestrator,) = pod["initContainers"], pod["containers"]
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    used = {f"--{key}" for group in groups for key in group["rayStartParams"]}
    used |= {argument.partition("=")[0] for argument in sidecar["args"][2:]}
    assert used - {option for parameter in start.params for option in parameter.opts} == set()
    kinds = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    wanted = json.loads({one["name"]: one.get("value", "") for one in orchestrator["env"]}["FLEET_RAY_RESOURCES"])
    workers = cluster["spec"]["workerGroupSpecs"][0]
    assert all(kinds["agents"]["resources"][key] >= amount for key, amount in wanted.items())
    assert kinds["agents"]["max_workers"] == workers["maxReplicas"] >= workers["minReplicas"] >= 1
    assert kinds["headgroup"]["resources"]["CPU"] == 0
    assert not wanted.keys() & kinds["headgroup"]["resources"].keys()
    # Each orchestrator keeps a host of its own: all of them must find room at once.
    scalers = {one["metadata"]["name"]: one for one in of_kind(objects, "HorizontalPodAutoscaler")}
    most = scalers["fleet-orchestrator"]["spec"]["maxReplicas"] if "fleet-orchestrator" in scalers else 1
    assert workers["maxReplicas"] * kinds["agents"]["resources"]["agent_host"] >= most


AGENTS = {"orchestrator", "ray-worker", "check"}
"""Containers in which agents' commands run, Jobs of the runner aside."""


@pytest.mark.parametrize("name", ["user namespaces", "jobs in user namespaces"])
def test_bubblewrap_gets_what_it_needs_where_agents_are_and_nowhere_else(name: str) -> None:
    objects = built(name)
    profile = {"type": "Localhost", "localhostProfile": PROFILE}
    whole = {
        one["name"]: (pod.spec.get("hostUsers"), one["securityContext"].get("seccompProfile"))
        for pod in pods(objects)
        for one in pod.containers
        if one["securityContext"].get("procMount") == "Unmasked"
    }
    assert whole == dict.fromkeys(AGENTS - ({"ray-worker"} if "jobs" in name else set()), (False, profile))
    profiles = [one["securityContext"].get("appArmorProfile") for pod in pods(objects) for one in pod.containers]
    assert len([one for one in profiles if one]) == (len(whole) if name == "user namespaces" else 0)
    settings = [found(objects, "ConfigMap", one)["data"] for one in ("fleet-settings", "fleet-agent-settings")]
    assert {one["FLEET_SANDBOX"] for one in settings} == {"bubblewrap"}
    # Nodes have it by that name.
    daemon = found(objects, "DaemonSet", "fleet-profiles")
    volumes = {one["name"]: one for one in daemon["spec"]["template"]["spec"]["volumes"]}
    assert f"{Path(volumes['nodes']['hostPath']['path']).name}/agent.json" == PROFILE
    shipped = found(objects, "ConfigMap", volumes["profiles"]["configMap"]["name"])
    assert shipped["metadata"]["namespace"] == daemon["metadata"]["namespace"]
    assert shipped["data"] == {"agent.json": (DEPLOY / "components" / "userns" / "agent.json").read_text()}


def test_the_seccomp_profile_opens_namespaces_and_mounts_and_names_no_call_twice() -> None:
    profile = json.loads((DEPLOY / "components" / "userns" / "agent.json").read_text())
    always = [name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]]
    assert len(always) == len({*always})
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {"clone", "unshare", "mount", "umount2", "pivot_root", "sethostname"} == {*profile["syscalls"][-1]["names"]}
    forbidden = {
        "bpf",
        "keyctl",
        "add_key",
        "io_uring_setup",
        "open_by_handle_at",
        "kexec_load",
        "init_module",
        "setns",
    }
    forbidden |= {"perf_event_open", "userfaultfd", "reboot", "setns", "fsopen", "move_mount", "pidfd_getfd", "syslog"}
    assert not forbidden & {*always}


def jobs(objects: Sequence[Object]) -> set[str]:
    """Prometheus' names of what PodMonitors have it look at: the namespace and the monitor, but for a `jobLabel`."""
    return {
        pod.labels.get(one["spec"].get("jobLabel", ""), f"{one['metadata']['namespace']}/{one['metadata']['name']}")
        for one in of_kind(objects, "PodMonitor")
        for pod in pods(objects)
        if pod.namespace == one["metadata"]["namespace"] and matches(one["spec"]["selector"], pod.labels)
    }


def test_alerts_and_dashboards_are_those_that_are_tested_and_ask_for_jobs_by_their_names() -> None:
    objects = built("production")
    assert COPY.read_text() == wrapped(SOURCE.read_text()), "run python -m tests.manifests.alerts"
    rules = found(objects, "PrometheusRule", "fleet")["spec"]
    assert rules == yaml.safe_load(SOURCE.read_text())
    asked = [
        re.compile(text if operator == "=~" else re.escape(text))
        for group in rules["groups"]
        for rule in group["rules"]
        for operator, text in re.findall(r'job(=~?)"([^"]+)"', rule["expr"])
    ]
    served = {"fleet-orchestrator", "fleet-context", "fleet-gateway", "fleet-runner"}
    assert asked and served <= jobs(objects)
    # One of all jobs, or one of them by its name.
    assert all(any(selector.fullmatch(job) for job in served) for selector in asked)
    assert any(all(selector.fullmatch(job) for job in served) for selector in asked)
    config = found(objects, "ConfigMap", "fleet-dashboards")
    assert config["metadata"]["namespace"] == "fleet"
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {
        path.name: json.loads(path.read_text()) for path in (DEPLOY.parent / "observability" / "grafana").glob("*.json")
    }
    assert {key: json.loads(text) for key, text in config["data"].items()} == files
