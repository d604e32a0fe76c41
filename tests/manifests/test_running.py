"""What containers are told is what their programs take: modules, settings, files, secrets, words of Ray and NATS."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pydantic import AliasChoices, ValidationError

from swe_ai_fleet.settings import Settings
from tests.manifests.objects import OVERLAYS, Object, PodView, environment, files, found, of_kind, overlay, pods
from workers.workspace_runner.settings import RunnerSettings

SITE_SECRETS = {
    ("fleet", "fleet-git"): {"<all of it>"},
    ("fleet-agents", "fleet-git"): {"username", "password"},
    ("fleet", "fleet-public-tls"): {"tls.crt", "tls.key"},
    ("fleet", "fleet-backup"): {"operator.nk"},
    ("fleet-tests", "fleet-client"): {"token", "ca.crt"},
}
"""Secrets that only a site has; docs/kubernetes.md says how to make them."""
EVERYWHERE = [*OVERLAYS, "tests"]


def known_variables() -> frozenset[str]:
    """Every `FLEET_…` that some process of ours reads."""
    names: set[str] = set()
    for field, info in Settings.model_fields.items():
        names.add(f"FLEET_{field.upper()}")
        if not info.repr:
            names.add(f"FLEET_{field.upper()}_FILE")
        if isinstance(info.validation_alias, AliasChoices):
            names |= {str(choice) for choice in info.validation_alias.choices}
    names |= {f"FLEET_RUNNER_{field.upper()}" for field in RunnerSettings.model_fields}
    return frozenset(names | {"FLEET_SERVER", "FLEET_TOKEN"})


def unknown_variables(told: Mapping[str, str]) -> list[str]:
    return sorted(name for name in told if name.startswith("FLEET_") and name not in known_variables())


def missing_files(pod: PodView, container: Object, told: Mapping[str, str]) -> list[str]:
    """Paths that settings name and no volume puts there; one may be a directory in which volumes are."""
    there = {*files(pod, container), *(str(Path(mount["mountPath"]).parent) for mount in container["volumeMounts"])}
    return sorted(value for value in told.values() if value.startswith("/etc/fleet/") and value not in there)


def _ours(objects: Sequence[Object]) -> Iterator[tuple[PodView, Object, dict[str, str]]]:
    for pod in pods(objects):
        for container in pod.containers:
            if "/fleet-" in container["image"]:
                yield pod, container, environment(objects, pod, container)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_settings_are_known_and_their_files_mounted(name: str) -> None:
    objects = overlay(name)
    for pod, container, told in _ours(objects):
        assert unknown_variables(told) == [], f"{pod} {container['name']}"
        assert missing_files(pod, container, told) == [], f"{pod} {container['name']}"
    jobs = found(objects, "ConfigMap", "fleet-agent-settings")["data"]
    assert unknown_variables(jobs) == []


def test_an_unknown_setting_and_a_missing_file_are_seen() -> None:
    objects = overlay("laptop")
    pod, container, told = next(one for one in _ours(objects) if one[1]["name"] == "orchestrator")
    assert unknown_variables({**told, "FLEET_NATS_ADRESS": "x"}) == ["FLEET_NATS_ADRESS"]
    container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] != "access"]
    assert missing_files(pod, container, told) == [
        "/etc/fleet/access/access.toml",
        "/etc/fleet/access/orchestrator.token",
    ]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_settings_are_taken(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    monkeypatch.chdir(tmp_path)
    for _, container, told in _ours(overlay(name)):
        with monkeypatch.context() as patched:
            for variable in [one for one in os.environ if one.startswith(("FLEET_", "NATS_", "RAY_"))]:
                patched.delenv(variable)
            for variable, value in told.items():
                named = (
                    variable.endswith("_FILE") and variable.removesuffix("_FILE").lower()[6:] in Settings.model_fields
                )
                patched.setenv(variable, str(secret) if named else value)
            settings, runner = Settings(), RunnerSettings()
            assert runner.namespace in ("", "fleet-agents")
            if container["name"] == "orchestrator":
                assert settings.ray_resources == {"agent_host": 1}
                assert settings.sandbox == "landlock"
                assert not settings.loopback
                assert settings.ray_token == settings.context_token == "secret"
                assert settings.http_address == ""
            if container["name"] == "gateway":
                assert settings.orchestrator_token == "secret"


def test_a_setting_of_the_wrong_kind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_RAY_RESOURCES", '{"agent_host": "one"}')
    with pytest.raises(ValidationError):
        Settings()


def _module(arguments: Sequence[str]) -> str:
    return arguments[2] if list(arguments[:2]) == ["python", "-m"] else ""


def absent(module: str) -> bool:
    """Whether `python -m` would find nothing to run."""
    spec = importlib.util.find_spec(module)
    return spec is None or (
        bool(spec.submodule_search_locations) and importlib.util.find_spec(f"{module}.__main__") is None
    )


@pytest.mark.parametrize("name", EVERYWHERE)
def test_modules_are_there(name: str) -> None:
    run = [_module(one.get("args", ())) for _, one, _ in _ours(overlay(name))]
    assert {"services.orchestrator.main", "services.context.main", "services.gateway.main"} <= set(run)
    assert [module for module in run if module and absent(module)] == []


def test_a_module_that_is_not_there_is_seen() -> None:
    assert absent("services.orchestrator.mian")
    assert absent("services.gateway.access")


def _written(installation: Path) -> dict[tuple[str, str], dict[str, bytes]]:
    manifests = [json.loads(path.read_text()) for path in (installation / "kubernetes").glob("*.json")]
    return {
        (one["metadata"]["namespace"], one["metadata"]["name"]): {
            key: base64.b64decode(value) for key, value in one["data"].items()
        }
        for one in manifests
    }


def named_secrets(objects: Sequence[Object]) -> Iterator[tuple[str, str, str]]:
    """Namespace, name and key of every secret that Pods, Jobs and Ingresses name; an empty key is the whole of it."""
    for pod in pods(objects):
        for container in pod.containers:
            for one in container.get("env", ()):
                reference = one.get("valueFrom", {}).get("secretKeyRef")
                if reference:
                    yield pod.namespace, reference["name"], reference["key"]
            for one in container.get("envFrom", ()):
                if "secretRef" in one:
                    yield pod.namespace, one["secretRef"]["name"], ""
        for volume in pod.spec.get("volumes", ()):
            secret = volume.get("secret")
            if secret:
                # Whole secrets hold more than one Pod needs.
                for item in secret.get("items") or [{"key": "<all of it>"}]:
                    yield pod.namespace, secret["secretName"], item["key"]
    told = found(objects, "ConfigMap", "fleet-runner")["data"]
    names = [told["FLEET_RUNNER_FILES_SECRET"], *json.loads(told["FLEET_RUNNER_AGENT_SECRETS"])]
    names += json.loads(told["FLEET_RUNNER_GIT_SECRETS"]).values()
    yield from ((told["FLEET_RUNNER_NAMESPACE"], name, "") for name in names)
    for one in of_kind(objects, "Ingress"):
        yield from ((one["metadata"]["namespace"], tls["secretName"], "") for tls in one["spec"]["tls"])


def unknown_secrets(objects: Sequence[Object], written: Mapping[tuple[str, str], object]) -> list[str]:
    known = {place: set(keys) for place, keys in SITE_SECRETS.items()}  # pyright: ignore[reportArgumentType]
    known |= {place: set(data) for place, data in written.items()}  # pyright: ignore[reportArgumentType]
    return sorted(
        f"{namespace}/{name} {key}"
        for namespace, name, key in named_secrets(objects)
        if (namespace, name) not in known or (key and key not in known[namespace, name])
    )


@pytest.mark.parametrize("name", EVERYWHERE)
def test_secrets_are_those_that_fleet_init_writes(name: str, installation: Path) -> None:
    assert unknown_secrets(overlay(name), _written(installation)) == []


def test_a_secret_that_nobody_writes_is_seen(installation: Path) -> None:
    objects = overlay("laptop")
    volumes = found(objects, "Deployment", "fleet-gateway")["spec"]["template"]["spec"]["volumes"]
    next(one for one in volumes if one["name"] == "nats")["secret"]["items"][0]["key"] = "gateway.seed"
    del next(one for one in volumes if one["name"] == "tls")["secret"]["items"]
    assert unknown_secrets(objects, _written(installation)) == [
        "fleet/fleet-nats gateway.seed",
        "fleet/fleet-tls <all of it>",
    ]


def test_agents_find_what_their_settings_name(installation: Path) -> None:
    """The runner mounts its files secret at /etc/fleet."""
    told = found(overlay("laptop"), "ConfigMap", "fleet-agent-settings")["data"]
    keys = _written(installation)["fleet-agents", "fleet-agents"].keys()
    named = {Path(value).name for value in told.values() if value.startswith("/etc/fleet/")}
    assert named and named <= keys


@pytest.mark.parametrize("name", OVERLAYS)
def test_nats_takes_its_configuration(name: str, installation: Path, tmp_path: Path) -> None:
    written = _written(installation)
    config: str = found(overlay(name), "ConfigMap", "fleet-nats")["data"]["nats.conf"]
    (tmp_path / "auth").mkdir()
    (tmp_path / "auth" / "accounts.conf").write_bytes(written["fleet", "fleet-nats"]["accounts.conf"])
    for key, file in (("ca.crt", "ca.crt"), ("nats.crt", "tls.crt"), ("nats.key", "tls.key")):
        (tmp_path / file).write_bytes(written["fleet", "fleet-tls"][key])
    config = config.replace("/etc/nats/tls", str(tmp_path)).replace("store_dir: /data", f"store_dir: {tmp_path}/data")
    (tmp_path / "nats.conf").write_text(config)
    server = str(Path(sys.executable).with_name("nats-server"))
    told = {**os.environ, "POD_NAME": "fleet-nats-0"}
    run = subprocess.run(
        [server, "-t", "-c", str(tmp_path / "nats.conf")],
        env=told,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    broken = config.replace("max_file_store", "max_file_stoer")
    (tmp_path / "nats.conf").write_text(broken)
    run = subprocess.run(
        [server, "-t", "-c", str(tmp_path / "nats.conf")],
        env=told,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode != 0


@pytest.mark.parametrize("name", OVERLAYS)
def test_replicas_of_streams_are_as_many_as_servers(name: str) -> None:
    objects = overlay(name)
    servers = found(objects, "StatefulSet", "fleet-nats")["spec"]["replicas"]
    assert found(objects, "ConfigMap", "fleet-settings")["data"]["FLEET_STREAM_REPLICAS"] == str(servers)


@pytest.mark.parametrize("name", OVERLAYS)
def test_ray_takes_its_options_and_sees_what_workers_offer(name: str) -> None:
    """Ray's own reading of the RayCluster: what its autoscaler believes that a worker has."""
    from ray.autoscaler._private.kuberay import autoscaling_config
    from ray.scripts.scripts import start

    options = {option for parameter in start.params for option in parameter.opts}
    objects = overlay(name)
    cluster = found(objects, "RayCluster", "fleet")
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    used = {f"--{key}" for group in groups for key in group["rayStartParams"]}
    (sidecar,) = found(objects, "Deployment", "fleet-orchestrator")["spec"]["template"]["spec"]["initContainers"]
    used |= {argument.partition("=")[0] for argument in sidecar["args"][2:]}
    assert used - options == set()
    derived = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)  # pyright: ignore
    kinds = derived["available_node_types"]
    (orchestrator,) = [one for _, one, _ in _ours(objects) if one["name"] == "orchestrator"]
    wanted = json.loads({one["name"]: one.get("value", "") for one in orchestrator["env"]}["FLEET_RAY_RESOURCES"])
    workers = cluster["spec"]["workerGroupSpecs"][0]
    assert all(kinds["agents"]["resources"][key] >= amount for key, amount in wanted.items())
    assert kinds["agents"]["max_workers"] == workers["maxReplicas"] >= workers["minReplicas"] >= 1
    assert kinds["headgroup"]["resources"]["CPU"] == 0
    assert not wanted.keys() & kinds["headgroup"]["resources"].keys()
    # Each orchestrator keeps a host of its own: all of them must find room at once.
    scaled = [
        one for one in of_kind(objects, "HorizontalPodAutoscaler") if one["metadata"]["name"] == "fleet-orchestrator"
    ]
    most = scaled[0]["spec"]["maxReplicas"] if scaled else 1
    assert workers["maxReplicas"] * kinds["agents"]["resources"]["agent_host"] >= most


def test_ray_is_of_the_version_that_the_lock_has() -> None:
    import ray

    assert found(overlay("production"), "RayCluster", "fleet")["spec"]["rayVersion"] == ray.__version__


def test_an_orchestrator_joins_ray_through_its_sidecar() -> None:
    """A driver looks for a Ray node among the processes beside it, and reaches it through /tmp/ray."""
    pod = found(overlay("production"), "Deployment", "fleet-orchestrator")["spec"]["template"]["spec"]
    (sidecar,), (orchestrator,) = pod["initContainers"], pod["containers"]
    assert pod["shareProcessNamespace"] is True
    assert sidecar["restartPolicy"] == "Always"
    shared = [{(m["name"], m["mountPath"]) for m in one["volumeMounts"]} for one in (sidecar, orchestrator)]
    assert {("ray", "/tmp/ray"), ("shm", "/dev/shm")} <= shared[0] & shared[1]
    assert sidecar["image"] == orchestrator["image"]
    assert {"--num-cpus=0", "--block"} <= set(sidecar["args"])
