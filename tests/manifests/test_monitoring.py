"""What Prometheus and Grafana get in a cluster is what deploy/observability has, under the names that alerts go by."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
import yaml

from tests.manifests.alerts import COPY, SOURCE, wrapped
from tests.manifests.objects import DEPLOY, Object, built, found, matches, of_kind, pods

GRAFANA = DEPLOY.parent / "observability" / "grafana"


def jobs(objects: Sequence[Object]) -> set[str]:
    """Prometheus' names of what PodMonitors have it look at: the namespace and the monitor, but for a `jobLabel`."""
    return {
        pod.labels.get(one["spec"].get("jobLabel", ""), f"{one['metadata']['namespace']}/{one['metadata']['name']}")
        for one in of_kind(objects, "PodMonitor")
        for pod in pods(objects)
        if pod.namespace == one["metadata"]["namespace"] and matches(one["spec"]["selector"], pod.labels)
    }


@pytest.mark.parametrize("name", ["gpu", "production"])
def test_alerts_and_dashboards_are_those_that_are_tested_and_ask_for_jobs_by_their_names(name: str) -> None:
    objects = built(name)
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
    del found(objects, "PodMonitor", "fleet")["spec"]["jobLabel"]
    assert not any(selector.fullmatch(job) for selector in asked for job in jobs(objects) & {"fleet/fleet"})

    config = found(objects, "ConfigMap", "fleet-dashboards")
    assert config["metadata"]["namespace"] == "fleet"
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {path.name: json.loads(path.read_text()) for path in GRAFANA.glob("*.json")}
    assert {key: json.loads(text) for key, text in config["data"].items()} == files
    # What `kubectl apply` keeps of an object in its annotation.
    assert len(json.dumps(config)) < 256 * 1024
