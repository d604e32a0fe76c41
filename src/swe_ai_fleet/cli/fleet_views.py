"""The views of `fleet status` and `fleet metrics`: parts and queue now; durations, counts and costs over a time."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.messages import enum_word, local_time
from swe_ai_fleet.cli.screen import CommandFault, Screen
from swe_ai_fleet.domain.text import counted

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"([0-9]{1,6})([smhdw])")


def show_status(screen: Screen, reply: pb.GetStatusResponse, _: Any) -> None:
    screen.line(_summary(reply))
    screen.table(
        ("part", "state", "version", "what was found"),
        [
            (component.name, _state(component.state), component.version, component.message)
            for component in reply.components
        ],
    )
    screen.table(
        ("host", "orchestrator", "node", "agents", "memory", "state"),
        [
            (
                host.host_id,
                host.replica,
                host.node_id[:12],
                f"{host.running} of {host.slots}",
                size(host.memory_bytes),
                ("draining" if host.draining else "up") if host.alive else "no answer",
            )
            for host in reply.hosts
        ],
    )
    screen.table(
        ("node", "name", "CPUs", "CPU", "memory", "GPUs", "state"),
        [(node.node_id[:12], node.name, str(node.cpus), *_load(node)) for node in reply.nodes],
    )
    screen.table(
        ("model server", "profiles", "state", "running", "waiting", "KV cache", "prefix hits", "ours", "fault"),
        [
            (
                endpoint.url,
                ", ".join(endpoint.profiles),
                _state(endpoint.state),
                str(endpoint.running) if endpoint.HasField("running") else "-",
                str(endpoint.waiting) if endpoint.HasField("waiting") else "-",
                f"{endpoint.kv_cache_usage:.0%}" if endpoint.HasField("kv_cache_usage") else "-",
                f"{endpoint.prefix_cache_hit_rate:.0%}" if endpoint.HasField("prefix_cache_hit_rate") else "-",
                str(endpoint.in_flight),
                endpoint.message,
            )
            for endpoint in reply.model_endpoints
        ],
    )
    screen.table(
        ("stream", "messages", "size", "limit"),
        [
            (
                stream.name,
                f"{stream.messages:,}",
                size(stream.bytes),
                size(stream.max_bytes) if stream.max_bytes else "-",
            )
            for stream in reply.storage
        ],
    )


def size(count: int) -> str:
    """Bytes for people: `1.5 GiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _summary(reply: pb.GetStatusResponse) -> str:
    queue = reply.queue
    replicas = (
        ", ".join(
            f"{replica.name} ({replica.driven}{', draining' if replica.draining else ''})" for replica in reply.replicas
        )
        or "none"
    )
    oldest = f" (the oldest for {queue.oldest_wait_ms / 1000:.0f} s)" if queue.waiting else ""
    return (
        f"{reply.status}: {queue.driven - queue.awaiting_approval} running, "
        f"{queue.awaiting_approval} awaiting approval, {queue.waiting} queued{oldest}; orchestrators: {replicas}"
    )


def _load(node: pb.NodeStatus) -> tuple[str, str, str, str]:
    cpu = f"{node.cpu_percent:.0f}%" if node.HasField("cpu_percent") else "-"
    used = f"{size(node.memory_used_bytes)} of " if node.HasField("memory_used_bytes") else ""
    busy = ", ".join(
        f"{gpu.utilization_percent:.0f}%" if gpu.HasField("utilization_percent") else "?" for gpu in node.gpus
    )
    gpus = f"{node.gpu_count} ({busy})" if busy else str(node.gpu_count)
    state = "draining" if node.draining else f"no agents: {node.unfit}" if node.unfit else "up"
    return cpu, used + size(node.memory_total_bytes), gpus, state if node.alive else "gone"


def _state(state: pb.ComponentState) -> str:
    return enum_word(pb.ComponentState, state)


def show_metrics(screen: Screen, reply: pb.GetMetricsResponse, _: Any) -> None:
    for line in summary(reply):
        screen.line(line)
    screen.table(
        ("operation", "count", "p50", "p95", "p99"),
        [
            (
                latency.operation,
                f"{latency.count:,}",
                _duration(latency.p50_ms),
                _duration(latency.p95_ms),
                _duration(latency.p99_ms),
            )
            for latency in reply.latencies
            if latency.count
        ],
    )
    screen.table(
        ("model", "calls", "tokens in", "cached", "tokens out", "cost (USD)", "p50", "p95"),
        [
            (
                model.model or "?",
                f"{model.calls:,}",
                f"{model.prompt_tokens:,}",
                f"{model.cached_tokens:,}",
                f"{model.completion_tokens:,}",
                f"{model.cost_usd:.4f}" if model.cost_usd else "-",
                _duration(model.p50_ms),
                _duration(model.p95_ms),
            )
            for model in reply.models
        ],
    )
    screen.table(
        ("tool", "calls", "failures", "p50", "p95"),
        [
            (tool.name, f"{tool.calls:,}", f"{tool.failures:,}", _duration(tool.p50_ms), _duration(tool.p95_ms))
            for tool in reply.tools
        ],
    )


def since_ms(span: str) -> int:
    """The time a span such as `30m` ago, in ms since the epoch; 0 for no span. Raises CommandFault."""
    return int((time.time() - seconds(span)) * 1000) if span else 0


def seconds(span: str, field: str = "since") -> int:
    """The seconds of a span such as `30m`. Raises CommandFault naming the field."""
    match = _SPAN.fullmatch(span.strip())
    if match is None or not int(match[1]):
        raise CommandFault(f"{span[:32]!r} is not a span", field=field, hint="such as 90s, 30m, 1h or 7d")
    return int(match[1]) * _UNITS[match[2]]


def overlap_seconds(span: str) -> int:
    """The seconds for which a replaced secret stays valid, a year at most. Raises CommandFault."""
    return 0 if span == "0" else min(seconds(span, "overlap"), 366 * _UNITS["d"])


def summary(reply: pb.GetMetricsResponse) -> list[str]:
    agents, usage = reply.agents, reply.usage
    ended = (
        ", ".join(
            f"{status_count.count} {enum_word(pb.DeliberationStatus, status_count.status)}"
            for status_count in reply.executions
        )
        or "none"
    )
    lines = [
        f"from {local_time(reply.start_time_ms)} to {local_time(reply.end_time_ms)}",
        f"executions ended: {ended}",
        f"agents: {agents.running} running; {agents.started} started, {agents.succeeded} succeeded, "
        f"{agents.failed} failed, {agents.cancelled} cancelled",
        f"tokens: {usage.prompt_tokens:,} in ({reply.cache_hit_rate:.0%} of them cached), "
        f"{usage.completion_tokens:,} out; {counted(usage.model_calls, 'model call')}, "
        f"{counted(usage.tool_calls, 'tool call')}" + (f"; cost {usage.cost_usd:.4f} USD" if usage.cost_usd else ""),
    ]
    # Stops, loops and losses are listed only if there were any.
    happened = {
        f"agents stopped by: {_counted(agents.stops)}": bool(agents.stops),
        f"agents that looped: {_counted(agents.loops)}": bool(agents.loops),
        f"agents lost: {agents.lost}; executions restarted: {reply.takeovers}": agents.lost or reply.takeovers,
    }
    lines[3:3] = [line for line, has_happened in happened.items() if has_happened]
    if reply.incomplete:
        lines.append("the server is still reading its log: there is more than this")
    return lines


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(
        f"{number} {name}" for name, number in sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    )


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
