"""The meter's figures of the event log as Prometheus metrics, computed at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.orchestrator.figures import Figures, Sketch
from swe_ai_fleet.orchestrator.meter import Meter

LONG_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0)
SHORT_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_KINDS = ("deliberation", "orchestration", "workflow")


def log_figures(meter: Meter) -> Iterable[Metric]:
    """All figures of the meter. Every orchestrator reads the same log and has the same figures,

    so a query must use `max` over instances, never `sum`.
    """
    totals = meter.totals()
    whole = Figures()
    for figures in totals.values():
        whole.merge(figures)
    return [*_executions(totals), *_agents(totals), *_usage(totals), *_models(whole), *_tools(whole)]


def _executions(totals: Mapping[str, Figures]) -> Iterable[Metric]:
    accepted = CounterMetricFamily("fleet_executions_accepted", "Executions accepted.", labels=["tenant"])
    ended = CounterMetricFamily(
        "fleet_executions_finished", "Executions that ended, by status.", labels=["tenant", "status"]
    )
    queued = GaugeMetricFamily("fleet_executions_queued", "Executions that nobody drives yet.", labels=["tenant"])
    running = GaugeMetricFamily("fleet_executions_running", "Executions that are driven.", labels=["tenant"])
    family = CounterMetricFamily(
        "fleet_execution_takeovers",
        "Executions that another orchestrator went on with, or the same one anew.",
        labels=["tenant"],
    )
    durations = HistogramMetricFamily(
        "fleet_execution_duration_seconds", "From acceptance to the end.", labels=["tenant", "kind"]
    )
    waited = HistogramMetricFamily("fleet_queue_wait_seconds", "From acceptance to the first step.", labels=["tenant"])
    for tenant, figures in totals.items():
        accepted.add_metric([tenant], figures.accepted)
        for status in ExecutionStatus:
            if status.terminal:
                ended.add_metric([tenant, str(status)], figures.ended[status])
        queued.add_metric([tenant], max(0, figures.change.queued))
        running.add_metric([tenant], max(0, figures.change.driven))
        family.add_metric([tenant], figures.takeovers)
        for kind in _KINDS:
            _add(durations, [tenant, kind], figures.latencies.get(kind), LONG_SECONDS)
        _add(waited, [tenant], figures.latencies.get("queue_wait"), SHORT_SECONDS)
    return [accepted, ended, queued, running, family, durations, waited]


def _agents(totals: Mapping[str, Figures]) -> Iterable[Metric]:
    running = GaugeMetricFamily("fleet_agents_running", "Agents at work.", labels=["tenant"])
    started = CounterMetricFamily("fleet_agent_runs_started", "Runs of agents that began.", labels=["tenant"])
    stopped = CounterMetricFamily(
        "fleet_agent_runs_stopped", "Runs of agents that ended, by reason.", labels=["tenant", "reason"]
    )
    lost = CounterMetricFamily("fleet_agent_runs_lost", "Runs whose process died under them.", labels=["tenant"])
    loops = CounterMetricFamily(
        "fleet_agent_loops", "Agents that went in circles, by what was done about it.", labels=["tenant", "advice"]
    )
    durations = HistogramMetricFamily(
        "fleet_agent_run_duration_seconds", "How long agents worked, waits for people aside.", labels=["tenant"]
    )
    check = HistogramMetricFamily("fleet_check_duration_seconds", "How long checks of candidates took.")
    checks = Sketch()
    for tenant, figures in totals.items():
        running.add_metric([tenant], max(0, figures.change.agents))
        started.add_metric([tenant], figures.agents_started)
        for reason, number in figures.stops.items():
            stopped.add_metric([tenant, reason], number)
        lost.add_metric([tenant], figures.lost)
        for advice, number in figures.loops.items():
            loops.add_metric([tenant, advice], number)
        _add(durations, [tenant], figures.latencies.get("agent"), LONG_SECONDS)
        checks.merge(figures.latencies.get("check") or Sketch())
    _add(check, [], checks, SHORT_SECONDS)
    return [running, started, stopped, lost, loops, durations, check]


def _usage(totals: Mapping[str, Figures]) -> Iterable[Metric]:
    steps = CounterMetricFamily("fleet_agent_steps", "Steps of agents: replies of their models.", labels=["tenant"])
    tokens = CounterMetricFamily(
        "fleet_tokens", "Tokens; `cached` are those of the prompt that the server had.", labels=["tenant", "type"]
    )
    cost = CounterMetricFamily("fleet_cost", "Money, in the currency of the configured prices.", labels=["tenant"])
    for tenant, figures in totals.items():
        usage = figures.usage
        steps.add_metric([tenant], usage.model_calls)
        tokens.add_metric([tenant, "prompt"], usage.prompt_tokens)
        tokens.add_metric([tenant, "completion"], usage.completion_tokens)
        tokens.add_metric([tenant, "cached"], usage.cached_tokens)
        cost.add_metric([tenant], max(0.0, usage.cost))
    return [steps, tokens, cost]


def _models(whole: Figures) -> Iterable[Metric]:
    calls = CounterMetricFamily("fleet_model_calls", "Replies of models.", labels=["model"])
    tokens = CounterMetricFamily("fleet_model_tokens", "Tokens of a model.", labels=["model", "type"])
    durations = HistogramMetricFamily(
        "fleet_model_call_duration_seconds", "How long replies took, waits for a server included.", labels=["model"]
    )
    for name, model in whole.models.items():
        calls.add_metric([name], model.calls)
        tokens.add_metric([name, "prompt"], model.usage.prompt_tokens)
        tokens.add_metric([name, "completion"], model.usage.completion_tokens)
        tokens.add_metric([name, "cached"], model.usage.cached_tokens)
        _add(durations, [name], model.latency, SHORT_SECONDS)
    return [calls, tokens, durations]


def _tools(whole: Figures) -> Iterable[Metric]:
    calls = CounterMetricFamily("fleet_tool_calls", "Calls of tools, by outcome.", labels=["operation", "outcome"])
    cached = CounterMetricFamily(
        "fleet_tool_cache_hits", "Calls that an earlier, identical one answered.", labels=["operation"]
    )
    durations = HistogramMetricFamily("fleet_tool_call_duration_seconds", "How long calls took.", labels=["operation"])
    for name, tool in whole.tools.items():
        for outcome, number in tool.outcomes.items():
            calls.add_metric([name, str(outcome)], number)
        cached.add_metric([name], tool.cached)
        _add(durations, [name], tool.latency, SHORT_SECONDS)
    return [calls, cached, durations]


def _add(family: HistogramMetricFamily, labels: list[str], sketch: Sketch | None, bounds: tuple[float, ...]) -> None:
    """Add a series, an empty one where nothing was counted, so that rates begin at 0."""
    sketch = sketch or Sketch()
    counts, total = sketch.histogram([1_000 * bound for bound in bounds])
    buckets = [(str(bound), count) for bound, count in zip(bounds, counts, strict=True)]
    family.add_metric(labels, buckets=[*buckets, ("+Inf", sketch.count)], sum_value=total / 1_000)
