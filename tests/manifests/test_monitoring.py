"""What Prometheus and Grafana get in a cluster is what deploy/observability has, under the names that alerts go by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import pytest
import yaml

from tests.manifests.alerts import COPY, SOURCE, wrapped
from tests.manifests.objects import DEPLOY, Object, found, matches, of_kind, overlay, pods

GRAFANA = DEPLOY.parent / "observability" / "grafana"
WITH = ("gpu", "production")
_JOB = re.compile(r'job(=~?)"([^"]+)"')


def jobs(objects: Sequence[Object]) -> set[str]:
    """Prometheus' names of what PodMonitors have it look at: the namespace and the monitor, but for a `jobLabel`."""
    told: set[str] = set()
    for one in of_kind(objects, "PodMonitor"):
        spec = one["spec"]
        otherwise = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        told |= {
            pod.labels.get(spec.get("jobLabel", ""), otherwise)
            for pod in pods(objects)
            if pod.namespace == one["metadata"]["namespace"] and matches(spec["selector"], pod.labels)
        }
    return told


def _selectors(groups: Sequence[Object]) -> Iterator[re.Pattern[str]]:
    for group in groups:
        for rule in group["rules"]:
            for operator, text in _JOB.findall(rule["expr"]):
                yield re.compile(text if operator == "=~" else re.escape(text))


@pytest.mark.parametrize("name", WITH)
def test_the_alerts_are_those_that_are_tested(name: str) -> None:
    assert COPY.read_text() == wrapped(SOURCE.read_text()), "run python -m tests.manifests.alerts"
    rule = found(overlay(name), "PrometheusRule", "fleet")
    assert rule["spec"] == yaml.safe_load(SOURCE.read_text())


@pytest.mark.parametrize("name", WITH)
def test_jobs_have_the_names_that_alerts_ask_for(name: str) -> None:
    objects = overlay(name)
    selectors = list(_selectors(found(objects, "PrometheusRule", "fleet")["spec"]["groups"]))
    assert selectors
    served = {"fleet-orchestrator", "fleet-context", "fleet-gateway", "fleet-runner"}
    assert served <= jobs(objects)
    # One of all jobs, or one of them by its name.
    assert all(any(selector.fullmatch(job) for job in served) for selector in selectors)
    assert any(all(selector.fullmatch(job) for job in served) for selector in selectors)
    del found(objects, "PodMonitor", "fleet")["spec"]["jobLabel"]
    assert not any(selector.fullmatch(job) for selector in selectors for job in jobs(objects) & {"fleet/fleet"})


@pytest.mark.parametrize("name", WITH)
def test_grafana_gets_every_dashboard(name: str) -> None:
    config = found(overlay(name), "ConfigMap", "fleet-dashboards")
    assert config["metadata"]["namespace"] == "fleet"
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {path.name: json.loads(path.read_text()) for path in GRAFANA.glob("*.json")}
    assert {key: json.loads(text) for key, text in config["data"].items()} == files
    # What `kubectl apply` keeps of an object in its annotation.
    assert len(json.dumps(config)) < 256 * 1024
