"""Components that no overlay takes keep to the rules as well, alone and together, in the kustomization of a site."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.manifests.kubectl import kustomized
from tests.manifests.objects import DEPLOY, OVERLAYS, Object, composed, environment, found, of_kind, pods
from tests.manifests.rules import RULES
from tests.manifests.test_running import missing_files, unknown_secrets, unknown_variables
from tests.manifests.test_schemas import check
from tests.manifests.test_ways import closed
from workers.workspace_runner.settings import RunnerSettings

SITES = {
    "extras": ("production", "tracing", "backup", "gateway-api", "images"),
    "jobs": ("production", "jobs", "images"),
    "jobs on a laptop": ("laptop", "tracing", "jobs", "images"),
}
_GIVEN = {("fleet", "fleet-backup"): {"operator.nk": b""}}


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    told: dict[str, str] = {}
    for name, (start, *components) in SITES.items():
        told[name] = json.dumps(composed(tmp_path_factory.mktemp("site"), start, *components))
    return told


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, sites: dict[str, str]) -> list[Object]:
    return json.loads(sites[request.param])


def test_a_site_keeps_the_rules(site: list[Object]) -> None:
    assert [told for rule in RULES for told in rule(site)] == []
    assert closed(site) == []
    for one in site:
        check(one, "1.36")


def test_its_settings_and_secrets_are_there(site: list[Object], installation: Path) -> None:
    written = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one["data"]
        for one in (json.loads(path.read_text()) for path in (installation / "kubernetes").glob("*.json"))
    }
    assert unknown_secrets(site, written | _GIVEN) == []
    for pod in pods(site):
        for container in pod.containers:
            told = environment(site, pod, container)
            assert unknown_variables(told) == [], f"{pod}"
            assert missing_files(pod, container, told) == [], f"{pod} {container['name']}"


@pytest.mark.parametrize("name", ["jobs", "jobs on a laptop"])
def test_jobs_want_nothing_of_ray(name: str, sites: dict[str, str]) -> None:
    objects: list[Object] = json.loads(sites[name])
    whole = json.dumps([one for one in objects if one["kind"] not in ("NetworkPolicy", "ConfigMap")]).lower()
    assert "fleet-ray" not in whole and "ray_" not in whole and "ray.io" not in whole
    pod = found(objects, "Deployment", "fleet-orchestrator")["spec"]["template"]["spec"]
    assert not pod.get("initContainers") and not pod.get("shareProcessNamespace")
    told = {one["name"]: one.get("value", "") for one in pod["containers"][0]["env"]}
    assert told["FLEET_EXECUTOR"] == "kubernetes"
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == volumes
    runner = found(objects, "ConfigMap", "fleet-runner")["data"]
    assert runner["FLEET_RUNNER_IMAGE"].startswith("registry.example.org/")
    assert runner.get("FLEET_RUNNER_TAKES", RunnerSettings.model_fields["takes"].default) == "jobs"


def test_traces_are_let_out_of_whoever_is_told_to_send_them(sites: dict[str, str]) -> None:
    objects: list[Object] = json.loads(sites["extras"])
    for name in ("fleet-settings", "fleet-agent-settings"):
        assert found(objects, "ConfigMap", name)["data"]["FLEET_OTLP_ENDPOINT"].endswith(":4318")
    policies = [one for one in of_kind(objects, "NetworkPolicy") if one["metadata"]["name"] == "to-collector"]
    assert {one["metadata"]["namespace"] for one in policies} == {"fleet", "fleet-agents"}
    named: set[str] = set()
    for one in policies:
        assert [port["port"] for rule in one["spec"]["egress"] for port in rule["ports"]] == [4318]
        named |= {value for rule in one["spec"]["podSelector"].get("matchExpressions", ()) for value in rule["values"]}
    reads = {
        pod.labels["app.kubernetes.io/name"]
        for pod in pods(objects)
        if any("FLEET_OTLP_ENDPOINT" in environment(objects, pod, one) for one in pod.containers)
    }
    # Hosts on Ray have their orchestrator's settings; a backup sends no traces.
    assert named == (reads | {"fleet-ray-worker"}) - {"fleet-backup"}


def test_every_component_is_in_something_that_is_tested() -> None:
    taken = {component for _, *components in SITES.values() for component in components}
    overlays = [DEPLOY / "overlays" / name / "kustomization.yaml" for name in OVERLAYS]
    taken |= {Path(line).name for path in overlays for line in path.read_text().split() if "components/" in line}
    assert taken == {path.name for path in (DEPLOY / "components").iterdir()}


@pytest.mark.parametrize(
    ("component", "file", "kind"), [("ingress", "ingress.yaml", "Ingress"), ("gateway-api", "route.yaml", "HTTPRoute")]
)
def test_the_gateway_answers_for_the_host_it_is_reached_by(
    component: str, file: str, kind: str, tmp_path: Path
) -> None:
    """Given once: in the Ingress or the route."""
    for name in ("base", "components"):
        shutil.copytree(DEPLOY / name, tmp_path / "k8s" / name)
    shutil.copytree(DEPLOY / "overlays" / "laptop", tmp_path / "k8s" / "overlays" / "laptop")
    door = tmp_path / "k8s" / "components" / component / file
    given = ("- host: fleet.example.org", "hostnames: [fleet.example.org]")
    changed = door.read_text()
    for one in given:
        changed = changed.replace(one, one.replace("fleet.example.org", "fleet.acme.test"))
    door.write_text(changed)
    laptop = tmp_path / "k8s" / "overlays" / "laptop" / "kustomization.yaml"
    laptop.write_text(laptop.read_text().replace("../components/images", f"../components/{component}"))
    objects = [one for one in yaml.safe_load_all(kustomized(laptop.parent)) if one]
    (gateway,) = found(objects, "Deployment", "fleet-gateway")["spec"]["template"]["spec"]["containers"]
    told = {one["name"]: one.get("value", "") for one in gateway["env"]}
    assert told["FLEET_HTTP_HOSTS"] == "fleet-gateway.fleet.svc,fleet.acme.test"
    assert "fleet.example.org" not in json.dumps(found(objects, kind, "fleet-gateway"))
