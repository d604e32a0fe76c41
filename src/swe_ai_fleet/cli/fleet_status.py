"""`fleet status`: what the fleet stands on, and what it is doing now."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.messages import enum_word
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import plain_table


def show_status(screen: Screen, reply: pb.GetStatusResponse, _: Any) -> None:
    """Print the fleet as it is now."""
    screen.line(_summary(reply))
    for table in status_tables(reply):
        screen.out.print(table)


def status_tables(reply: pb.GetStatusResponse) -> list[Table]:
    """What there is to show, a table each; nothing where there are no rows."""
    parts = plain_table(
        ("part", "state", "version", "what was found"),
        [(one.name, _state(one.state), one.version, one.message) for one in reply.components],
    )
    hosts = plain_table(
        ("host", "orchestrator", "node", "agents", "memory", "state"),
        [
            (
                one.host_id,
                one.replica,
                one.node_id[:12],
                f"{one.running} of {one.slots}",
                size(one.memory_bytes),
                "up" if one.alive else "no answer",
            )
            for one in reply.hosts
        ],
    )
    nodes = plain_table(
        ("node", "name", "CPUs", "CPU", "memory", "GPUs", "state"),
        [
            (one.node_id[:12], one.name, str(one.cpus), *_load(one), "up" if one.alive else "gone")
            for one in reply.nodes
        ],
    )
    models = plain_table(
        ("model server", "profiles", "state", "running", "waiting", "KV cache", "prefix hits", "ours", "fault"),
        [
            (
                one.url,
                ", ".join(one.profiles),
                _state(one.state),
                str(one.running) if one.HasField("running") else "-",
                str(one.waiting) if one.HasField("waiting") else "-",
                f"{one.kv_cache_usage:.0%}" if one.HasField("kv_cache_usage") else "-",
                f"{one.prefix_cache_hit_rate:.0%}" if one.HasField("prefix_cache_hit_rate") else "-",
                str(one.in_flight),
                one.message,
            )
            for one in reply.model_endpoints
        ],
    )
    storage = plain_table(
        ("stream", "messages", "size", "limit"),
        [
            (one.name, f"{one.messages:,}", size(one.bytes), size(one.max_bytes) if one.max_bytes else "-")
            for one in reply.storage
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
    replicas = ", ".join(f"{one.name} ({one.driven})" for one in reply.replicas) or "none"
    oldest = f", the first of them for {queue.oldest_wait_ms / 1000:.0f} s" if queue.waiting else ""
    return (
        f"{reply.status}: {queue.driven} executions driven, {queue.awaiting_approval} of them wait for a person, "
        f"{queue.waiting} queued{oldest}; orchestrators: {replicas}"
    )


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
