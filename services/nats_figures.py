"""Metrics of NATS as a process sees it, for Prometheus."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


@asynccontextmanager
async def nats_metrics(telemetry: Telemetry, log: JetStream) -> AsyncGenerator[None]:
    """Inside, the metrics of this process say whether JetStream answers it, and how fast."""
    if telemetry.exposition is None:
        yield
        return
    from prometheus_client.metrics_core import GaugeMetricFamily

    async def nats() -> list[Metric]:
        ping = await log.ping()
        seconds = ping.latency_ms / 1_000
        return [
            GaugeMetricFamily("fleet_nats_up", "Whether JetStream answers.", float(ping.ok)),
            GaugeMetricFamily("fleet_nats_round_trip_seconds", "How long one question took.", seconds),
        ]

    with telemetry.exposition.source("nats", nats):
        yield
