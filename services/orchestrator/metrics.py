"""Figures over a range of time, as clients get them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import tenant
from swe_ai_fleet.contract import from_enum, to_enum, to_message
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.orchestrator.metrics import (
    RELATIVE_ERROR,
    Figures,
    Meter,
    ModelFigures,
    Point,
    Sketch,
    ToolFigures,
)

OPERATIONS = (
    "deliberation",
    "orchestration",
    "workflow",
    "agent",
    "model_call",
    "tool_call",
    "check",
    "queue_wait",
)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Carries out GetMetrics.

    Attributes:
        meter: Has the figures.
        councils: Counts the councils there are.
    """

    meter: Meter
    councils: Callable[[], Awaitable[pb.CouncilMetrics]] | None = None

    async def get(self, request: pb.GetMetricsRequest) -> pb.GetMetricsResponse:
        """The figures of a range of time. Raises InvalidRequest naming the field, Unavailable."""
        if request.end_time_ms and request.end_time_ms <= request.start_time_ms:
            raise InvalidRequest("the range of time is empty", field="end_time_ms", hint="later than start_time_ms")
        if request.start_time_ms > time.time() * 1000:
            raise InvalidRequest(
                "the range lies in the future", field="start_time_ms", hint="0: as far back as it goes"
            )
        role = from_enum(Role, pb.Role, request.role)
        found = await self.meter.measure(
            tenant(),
            start=request.start_time_ms / 1000,
            end=request.end_time_ms / 1000,
            role=str(role) if role is not None else "",
            step=request.step_seconds,
        )
        total = found.total
        return pb.GetMetricsResponse(
            start_time_ms=found.start * 1000,
            end_time_ms=found.end * 1000,
            latencies=[_latency(name, total.latencies.get(name) or Sketch()) for name in OPERATIONS],
            agents=pb.AgentMetrics(
                running=max(0, found.now.agents),
                started=total.agents_started,
                succeeded=total.agents_succeeded,
                failed=total.agents_failed,
                cancelled=total.agents_cancelled,
                lost=total.lost,
                stops=total.stops,
                loops=total.loops,
            ),
            councils=await self.councils() if self.councils is not None else None,
            usage=to_message(pb.Usage, total.usage),
            cache_hit_rate=_rate(total),
            executions=_counts(total.ended),
            series=[_point(one) for one in found.series],
            step_seconds=found.step,
            models=_models(total.models),
            tools=_tools(total.tools),
            quantile_error=RELATIVE_ERROR,
            incomplete=found.incomplete,
            takeovers=total.takeovers,
        )


def _latency(operation: str, sketch: Sketch) -> pb.LatencySummary:
    return pb.LatencySummary(
        operation=operation,
        count=sketch.count,
        p50_ms=sketch.quantile(0.5),
        p95_ms=sketch.quantile(0.95),
        p99_ms=sketch.quantile(0.99),
    )


def _rate(figures: Figures) -> float:
    spent = figures.usage
    return min(1.0, spent.cached_tokens / spent.prompt_tokens) if spent.prompt_tokens else 0.0


def _counts(ended: Mapping[ExecutionStatus, int]) -> list[pb.StatusCount]:
    return [
        pb.StatusCount(status=to_enum(pb.DeliberationStatus, status), count=ended[status]) for status in sorted(ended)
    ]


def _point(point: Point) -> pb.MetricsPoint:
    figures, spent = point.figures, point.figures.usage
    calls = figures.latencies.get("model_call") or Sketch()
    return pb.MetricsPoint(
        start_time_ms=point.start * 1000,
        accepted=figures.accepted,
        ended=_counts(figures.ended),
        agents_running=point.gauges.agents,
        executions_running=point.gauges.driven,
        queue_length=point.gauges.queued,
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        cached_tokens=spent.cached_tokens,
        cost_usd=spent.cost,
        model_calls=spent.model_calls,
        tool_calls=spent.tool_calls,
        tool_failures=figures.tool_failures,
        model_call_p50_ms=calls.quantile(0.5),
        model_call_p95_ms=calls.quantile(0.95),
    )


def _models(models: Mapping[str, ModelFigures]) -> list[pb.ModelMetrics]:
    return [
        pb.ModelMetrics(
            model=name,
            calls=found.calls,
            prompt_tokens=found.usage.prompt_tokens,
            completion_tokens=found.usage.completion_tokens,
            cached_tokens=found.usage.cached_tokens,
            cost_usd=found.usage.cost,
            p50_ms=found.latency.quantile(0.5),
            p95_ms=found.latency.quantile(0.95),
        )
        for name, found in sorted(models.items(), key=lambda item: (-item[1].calls, item[0]))
    ]


def _tools(tools: Mapping[str, ToolFigures]) -> list[pb.ToolMetrics]:
    return [
        pb.ToolMetrics(
            name=name,
            calls=found.calls,
            failures=found.failures,
            p50_ms=found.latency.quantile(0.5),
            p95_ms=found.latency.quantile(0.95),
            cached=found.cached,
            outcomes={str(outcome): number for outcome, number in found.outcomes.items()},
        )
        for name, found in sorted(tools.items(), key=lambda item: (-item[1].calls, item[0]))
    ]
