"""`fleet status` and `fleet metrics`: what the fleet stands on and does now, how long things took, what they cost."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.messages import enum_word
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import local_time, plain_table
from swe_ai_fleet.domain.text import counted

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"([0-9]{1,6})([smhdw])")


def show_status(screen: Screen, reply: pb.GetStatusResponse, _: Any) -> None:
    """Print the fleet as it is now."""
    screen.line(_summary(reply))
    for table in status_tables(reply):
        screen.out.print(table)


def status_tables(reply: pb.GetStatusResponse) -> list[Table]:
    """What there is to show, a table each; nothing where there are no rows."""
    parts = plain_table(
        ("part", "state", "version", "what was found"),
        [
            (component.name, _state(component.state), component.version, component.message)
            for component in reply.components
        ],
    )
    hosts = plain_table(
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
    nodes = plain_table(
        ("node", "name", "CPUs", "CPU", "memory", "GPUs", "state"),
        [(node.node_id[:12], node.name, str(node.cpus), *_load(node), _node_state(node)) for node in reply.nodes],
    )
    models = plain_table(
        ("model server", "profiles", "state", "running", "waiting", "KV cache", "prefix hits", "ours", "fault"),
        [
            (
                server.url,
                ", ".join(server.profiles),
                _state(server.state),
                str(server.running) if server.HasField("running") else "-",
                str(server.waiting) if server.HasField("waiting") else "-",
                f"{server.kv_cache_usage:.0%}" if server.HasField("kv_cache_usage") else "-",
                f"{server.prefix_cache_hit_rate:.0%}" if server.HasField("prefix_cache_hit_rate") else "-",
                str(server.in_flight),
                server.message,
            )
            for server in reply.model_endpoints
        ],
    )
    storage = plain_table(
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
    return [table for table in (parts, hosts, nodes, models, storage) if table.row_count]


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


def _node_state(node: pb.NodeStatus) -> str:
    if not node.alive:
        return "gone"
    return "draining" if node.draining else f"no agents: {node.unfit}" if node.unfit else "up"


def _load(node: pb.NodeStatus) -> tuple[str, str, str]:
    cpu = f"{node.cpu_percent:.0f}%" if node.HasField("cpu_percent") else "-"
    used = f"{size(node.memory_used_bytes)} of " if node.HasField("memory_used_bytes") else ""
    busy = ", ".join(
        f"{gpu.utilization_percent:.0f}%" if gpu.HasField("utilization_percent") else "?" for gpu in node.gpus
    )
    gpus = f"{node.gpu_count} ({busy})" if busy else str(node.gpu_count)
    return cpu, used + size(node.memory_total_bytes), gpus


def _state(state: pb.ComponentState) -> str:
    return enum_word(pb.ComponentState, state)


def show_metrics(screen: Screen, reply: pb.GetMetricsResponse, _: Any) -> None:
    """Print the figures of a span of time."""
    for line in summary(reply):
        screen.line(line)
    for table in metrics_tables(reply):
        screen.out.print(table)


def since_ms(span: str) -> int:
    """When a span of time such as `30m` that ends now began; 0 for no span. Raises CommandFault."""
    return int((time.time() - seconds(span)) * 1000) if span else 0


def seconds(span: str, field: str = "since") -> int:
    """The length of a span such as `30m`. Raises CommandFault naming the field."""
    match = _SPAN.fullmatch(span.strip())
    if match is None or not int(match[1]):
        raise CommandFault(
            f"{span[:32]!r} is not a span", exit_code=Exit.USAGE, field=field, hint="such as 90s, 30m, 1h or 7d"
        )
    return int(match[1]) * _UNITS[match[2]]


def summary(reply: pb.GetMetricsResponse) -> list[str]:
    """What there is to say in words."""
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
        *_befell(reply),
        f"tokens: {usage.prompt_tokens:,} in ({reply.cache_hit_rate:.0%} of them cached), "
        f"{usage.completion_tokens:,} out; {counted(usage.model_calls, 'model call')}, "
        f"{counted(usage.tool_calls, 'tool call')}" + (f"; cost {usage.cost_usd:.4f} USD" if usage.cost_usd else ""),
    ]
    if reply.incomplete:
        lines.append("the server is still reading its log: there is more than this")
    return lines


def _befell(reply: pb.GetMetricsResponse) -> list[str]:
    """How agents stopped, and what went wrong; nothing of what did not happen."""
    agents = reply.agents
    lines = [f"agents stopped by: {_counted(agents.stops)}"] if agents.stops else []
    if agents.loops:
        lines.append(f"agents that looped: {_counted(agents.loops)}")
    if agents.lost or reply.takeovers:
        lines.append(f"agents lost: {agents.lost}; executions restarted: {reply.takeovers}")
    return lines


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(
        f"{number} {name}" for name, number in sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    )


def metrics_tables(reply: pb.GetMetricsResponse) -> list[Table]:
    """Latencies, models and tools; nothing where there are no rows. Durations in seconds."""
    latencies = plain_table(
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
    models = plain_table(
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
    tools = plain_table(
        ("tool", "calls", "failures", "p50", "p95"),
        [
            (tool.name, f"{tool.calls:,}", f"{tool.failures:,}", _duration(tool.p50_ms), _duration(tool.p95_ms))
            for tool in reply.tools
        ],
    )
    return [table for table in (latencies, models, tools) if table.row_count]


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
