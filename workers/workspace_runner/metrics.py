"""What a runner did, for Prometheus."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from services.nats_figures import nats_metrics
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.telemetry import Telemetry
from workers.workspace_runner.runner import Runner

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


@asynccontextmanager
async def runner_metrics(telemetry: Telemetry, runner: Runner, log: JetStream) -> AsyncGenerator[None]:
    """Within, who asks this process for metrics is told of its jobs."""
    if telemetry.exposition is None:
        yield
        return

    async def jobs() -> list[Metric]:
        return runner_figures(runner.figures())

    with telemetry.exposition.source("runner", jobs):
        async with nats_metrics(telemetry, log):
            yield


def runner_figures(figures: Mapping[str, float | Mapping[str, int]]) -> list[Metric]:
    """What `Runner.figures` says, as metrics."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    families: list[Metric] = []
    for name, text in (("running", "Jobs under way here."), ("waiting", "Jobs that wait here for a slot.")):
        gauge = GaugeMetricFamily(f"fleet_runner_jobs_{name}", text)
        gauge.add_metric([], _number(figures[name]))
        families.append(gauge)
    for name, family, text in (
        ("adopted", "fleet_runner_jobs_adopted", "Jobs that were running when this runner came to them."),
        ("wait_seconds", "fleet_runner_job_wait_seconds", "Time that jobs waited here for a slot, added up."),
        ("run_seconds", "fleet_runner_job_run_seconds", "Time that jobs took, added up."),
    ):
        counter = CounterMetricFamily(family, text)
        counter.add_metric([], _number(figures[name]))
        families.append(counter)
    for name, label, text in (
        ("started", "kind", "Jobs begun."),
        ("settled", "kind", "Jobs that told their outcome."),
        ("failed", "reason", "Jobs that ended without a word."),
    ):
        counter = CounterMetricFamily(f"fleet_runner_jobs_{name}", text, labels=[label])
        found = figures[name]
        for key, number in found.items() if isinstance(found, Mapping) else ():
            counter.add_metric([key], number)
        families.append(counter)
    return families


def _number(figure: float | Mapping[str, int]) -> float:
    return float(figure) if not isinstance(figure, Mapping) else 0.0
