"""The metrics of the fleet for Prometheus, and GetMetrics for clients.

Prometheus gets the current state of hosts, model servers, streams and leases; clients get figures over a time range.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import tenant
from services.grpc_server import nats_metrics
from swe_ai_fleet.contract import from_enum, to_enum, to_message
from swe_ai_fleet.domain.errors import InvalidRequest, Unavailable
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.fleet_status import FleetStatus
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.orchestrator.figures import RELATIVE_ERROR, ModelFigures, Sketch, ToolFigures
from swe_ai_fleet.orchestrator.meter import Meter, Point
from swe_ai_fleet.runtime.fleet_view import MeasuredFleetView
from swe_ai_fleet.runtime.node_load import added_up
from swe_ai_fleet.runtime.service_deps import ServiceDeps
from swe_ai_fleet.telemetry import Telemetry

T = TypeVar("T")
_TIMEOUT_SECONDS = 2.0
_MOST_TENANTS = 50
_MOST_ENDPOINTS = 200
OPERATIONS = (
    "deliberation",
    "orchestration",
    "workflow",
    "agent",
    "model_call",
    "model_wait",
    "tool_call",
    "check",
    "queue_wait",
)


class FleetSource:
    """Metrics from the view of the fleet. If measuring takes too long, the last result is used."""

    def __init__(self, view: MeasuredFleetView) -> None:
        self._view = view
        self._measuring: asyncio.Task[FleetStatus] | None = None
        self._last: FleetStatus | None = None

    async def __call__(self) -> Iterable[Metric]:
        if self._measuring is None:
            self._measuring = asyncio.create_task(self._view.status(), name="metrics of the fleet")
        await asyncio.wait([self._measuring], timeout=_TIMEOUT_SECONDS)
        if self._measuring.done():
            measuring, self._measuring = self._measuring, None
            self._last = measuring.result()
        if self._last is None:
            raise Unavailable("the fleet is still being measured")
        return fleet_figures(self._last, me=self._view.me)


def fleet_figures(status: FleetStatus, *, me: str) -> Iterable[Metric]:
    """The metrics of model servers, streams and tenants, and of this orchestrator's own hosts."""
    # A server is measured once for each of its models, with the same load.
    servers = {
        endpoint.url: endpoint for endpoint in sorted(status.endpoints, key=lambda endpoint: endpoint.state == "up")
    }
    most = sorted(status.tenants, key=lambda tenant: -tenant.bytes)[:_MOST_TENANTS]
    return [
        *_hosts(status, me),
        *_each(
            "fleet_model_server_",
            "endpoint",
            dict(list(servers.items())[:_MOST_ENDPOINTS]),
            ("up", "Whether a model server answers.", lambda endpoint: float(endpoint.state == "up")),
            ("running", "Requests that it works on.", lambda endpoint: endpoint.running),
            ("waiting", "Requests that wait there.", lambda endpoint: endpoint.waiting),
            ("kv_cache_ratio", "How full its cache is.", lambda endpoint: endpoint.kv_cache_usage),
            (
                "prefix_cache_hit_ratio",
                "How much of prompts it had cached.",
                lambda endpoint: endpoint.prefix_cache_hit_rate,
            ),
        ),
        *_each(
            "fleet_stream_",
            "stream",
            {stream.name: stream for stream in status.storage},
            ("bytes", "Bytes in a stream of NATS.", lambda stream: stream.bytes),
            ("limit_bytes", "The most it may hold; 0: no limit.", lambda stream: stream.max_bytes),
            ("messages", "Messages in it.", lambda stream: stream.messages),
        ),
        *_each(
            "fleet_tenant_",
            "tenant",
            {tenant.name: tenant for tenant in most},
            ("stored_bytes", "Bytes that NATS keeps for a tenant.", lambda tenant: tenant.bytes),
            ("storage_quota_bytes", "The most it may; 0: no quota.", lambda tenant: tenant.max_bytes),
        ),
    ]


def _each(
    prefix: str, label: str, things: Mapping[str, T], *figures: tuple[str, str, Callable[[T], float | None]]
) -> Iterable[Metric]:
    """A gauge for each figure (name, help text, value), with a value for each thing by its label."""
    for name, about, value in figures:
        family = GaugeMetricFamily(f"{prefix}{name}", about, labels=[label])
        for thing_name, thing in things.items():
            if (figure := value(thing)) is not None:
                family.add_metric([thing_name], figure)
        yield family


def _hosts(status: FleetStatus, me: str) -> Iterable[Metric]:
    own = next((replica for replica in status.replicas if replica.name == me), None)
    hosts = own.hosts if own is not None else ()
    alive = [host for host in hosts if host.alive]
    states = {"up": len(alive), "silent": len(hosts) - len(alive)}
    reports = [host.report for host in hosts if host.report is not None]
    memory = sum(host.report.memory for host in alive if host.report is not None)
    if own is not None and own.here is not None:
        reports.append(own.here)
    use = added_up(endpoint for report in reports for endpoint in report.endpoints)[:_MOST_ENDPOINTS]
    gauge = GaugeMetricFamily
    yield from _each("fleet_", "state", states, ("hosts", "Hosts of this orchestrator, by whether they answer.", float))
    unfit = len(own.unfit) if own is not None else 0
    yield gauge("fleet_nodes_unfit", "Nodes of Ray whose release does not fit this orchestrator's.", unfit)
    yield gauge("fleet_host_calls", "Calls under way on the hosts of this orchestrator.", sum(h.running for h in hosts))
    yield gauge("fleet_host_slots", "Calls that they take at once.", sum(host.slots for host in alive))
    yield gauge("fleet_host_memory_bytes", "Memory of the processes of the hosts that answer.", memory)
    yield from _each(
        "fleet_model_pool_",
        "endpoint",
        {endpoint.url: endpoint for endpoint in use},
        (
            "in_flight",
            "Calls to a model server by this orchestrator and its hosts.",
            lambda endpoint: endpoint.in_flight,
        ),
        (
            "breakers_open",
            "Processes whose calls keep away from a model server.",
            lambda endpoint: endpoint.open_circuits,
        ),
    )
    yield gauge(
        "fleet_model_pool_waiting", "Calls that wait for a model server.", sum(endpoint.waiting for endpoint in reports)
    )


def own_figures(deps: ServiceDeps) -> Iterable[Metric]:
    """The metrics of this orchestrator: its executions, the leases that it sees, its pool of the default model."""
    load, leases, pool = deps.executions.load(), deps.leases, deps.model.counters
    alive: Collection[str] = leases.alive()
    oldest = time.time() - datetime.fromisoformat(load.oldest).timestamp() if load.oldest else 0.0
    for_people = GaugeMetricFamily(
        "fleet_executions_for_people", "Executions that wait for a person.", labels=["tenant"]
    )
    for name, number in sorted(load.for_people.items(), key=lambda item: -item[1])[:_MOST_TENANTS]:
        for_people.add_metric([name], number)
    yield for_people
    for name, about, value in (
        ("fleet_queue_oldest_seconds", "How long the oldest of those has waited.", max(0.0, oldest)),
        ("fleet_drives", "Executions that this orchestrator drives.", load.driven),
        ("fleet_drives_limit", "The most that it drives at once.", load.room.executions),
        ("fleet_queue_depth", "Executions that wait for an orchestrator.", load.queued),
        ("fleet_queue_limit", "The most that may wait.", load.room.queued),
        ("fleet_lease_held", "Whether this orchestrator's own lease stands.", float(leases.me in alive)),
        ("fleet_leases", "Leases of orchestrators that stand.", len(alive)),
    ):
        yield GaugeMetricFamily(name, about, value)
    for name, about, value in (
        ("fleet_lease_renewal_failures", "Renewals of the own lease that failed.", leases.failures),
        ("fleet_leases_ended", "Leases of others that ended.", leases.ended),
        ("fleet_model_pool_failovers", "Calls that went to another server.", pool.failed_over),
        ("fleet_model_pool_breakers_opened", "Times that a server was given up for a while.", pool.opened),
        ("fleet_model_pool_turned_away", "Calls that a server refused for overload.", pool.turned_away),
        ("fleet_model_pool_gave_up", "Calls that no server answered in time.", pool.gave_up),
    ):
        yield CounterMetricFamily(name, about, value)


@asynccontextmanager
async def fleet_metrics(telemetry: Telemetry, deps: ServiceDeps) -> AsyncGenerator[None]:
    """Inside, this process exposes the metrics of the whole fleet."""
    exposition = telemetry.exposition
    if exposition is None:
        yield
        return
    from swe_ai_fleet.telemetry.log_figures import log_figures

    async def here() -> Iterable[Metric]:
        return list(own_figures(deps))

    async def log_metrics() -> Iterable[Metric]:
        if not deps.meter.complete:
            # The counters of half a log would look as if they had been reset.
            raise Unavailable("the log has not been read to its end yet")
        return log_figures(deps.meter)

    with (
        exposition.source("log", log_metrics),
        exposition.source("orchestrator", here),
        exposition.source("fleet", FleetSource(deps.view)),
    ):
        async with nats_metrics(telemetry, deps.log):
            yield


@dataclass(frozen=True, kw_only=True)
class Metrics:
    meter: Meter
    councils: Callable[[], Awaitable[pb.CouncilMetrics]] | None = None

    async def get(self, request: pb.GetMetricsRequest) -> pb.GetMetricsResponse:
        """The figures of a time range. Raises InvalidRequest naming the field, Unavailable."""
        if request.end_time_ms and request.end_time_ms <= request.start_time_ms:
            raise InvalidRequest("the range of time is empty", field="end_time_ms", hint="later than start_time_ms")
        if request.start_time_ms > time.time() * 1000:
            raise InvalidRequest(
                "the range lies in the future", field="start_time_ms", hint="0: as far back as it goes"
            )
        role = from_enum(Role, pb.Role, request.role)
        measured = await self.meter.measure(
            tenant(),
            start=request.start_time_ms / 1000,
            end=request.end_time_ms / 1000,
            role=str(role) if role is not None else "",
            step=request.step_seconds,
        )
        total, usage = measured.total, measured.total.usage
        return pb.GetMetricsResponse(
            start_time_ms=measured.start * 1000,
            end_time_ms=measured.end * 1000,
            latencies=[_latency(name, total.latencies.get(name) or Sketch()) for name in OPERATIONS],
            agents=to_message(
                pb.AgentMetrics,
                total,
                running=max(0, measured.now.agents),
                started=total.agents_started,
                succeeded=total.agents_succeeded,
                failed=total.agents_failed,
                cancelled=total.agents_cancelled,
            ),
            councils=await self.councils() if self.councils is not None else None,
            usage=to_message(pb.Usage, usage),
            cache_hit_rate=min(1.0, usage.cached_tokens / usage.prompt_tokens) if usage.prompt_tokens else 0.0,
            executions=_counts(total.ended),
            series=[_point(point) for point in measured.series],
            step_seconds=measured.step,
            models=_models(total.models),
            tools=_tools(total.tools),
            quantile_error=RELATIVE_ERROR,
            incomplete=measured.incomplete,
            takeovers=total.takeovers,
        )


def _quantiles(sketch: Sketch) -> dict[str, float]:
    return {"p50_ms": sketch.quantile(0.5), "p95_ms": sketch.quantile(0.95)}


def _latency(operation: str, sketch: Sketch) -> pb.LatencySummary:
    return pb.LatencySummary(
        operation=operation,
        count=sketch.count,
        p99_ms=sketch.quantile(0.99),
        **_quantiles(sketch),
    )


def _counts(ended: Mapping[ExecutionStatus, int]) -> list[pb.StatusCount]:
    return [
        pb.StatusCount(status=to_enum(pb.DeliberationStatus, status), count=ended[status]) for status in sorted(ended)
    ]


def _point(point: Point) -> pb.MetricsPoint:
    figures, spent = point.figures, point.figures.usage
    calls = figures.latencies.get("model_call") or Sketch()
    return to_message(
        pb.MetricsPoint,
        spent,
        start_time_ms=point.start * 1000,
        accepted=figures.accepted,
        ended=_counts(figures.ended),
        agents_running=point.gauges.agents,
        executions_running=point.gauges.driven,
        queue_length=point.gauges.queued,
        tool_failures=figures.tool_failures,
        model_call_p50_ms=calls.quantile(0.5),
        model_call_p95_ms=calls.quantile(0.95),
    )


def _models(models: Mapping[str, ModelFigures]) -> list[pb.ModelMetrics]:
    return [
        to_message(
            pb.ModelMetrics,
            figures.usage,
            model=name,
            calls=figures.calls,
            **_quantiles(figures.latency),
        )
        for name, figures in sorted(models.items(), key=lambda item: (-item[1].calls, item[0]))
    ]


def _tools(tools: Mapping[str, ToolFigures]) -> list[pb.ToolMetrics]:
    return [
        pb.ToolMetrics(
            name=name,
            calls=figures.calls,
            failures=figures.failures,
            **_quantiles(figures.latency),
            cached=figures.cached,
            outcomes={str(outcome): number for outcome, number in figures.outcomes.items()},
        )
        for name, figures in sorted(tools.items(), key=lambda item: (-item[1].calls, item[0]))
    ]
