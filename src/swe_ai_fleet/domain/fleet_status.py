"""The fleet as it was just measured: machines, hosts, model servers, and the health of its components.

None means that nothing reports a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ComponentState(StrEnum):
    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One dependency as it answers now. `message` gives a fault's cause and its fix; latency in milliseconds."""

    name: str
    state: ComponentState
    message: str = ""
    version: str = ""
    latency_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """A GPU. Sizes in bytes; `utilization_percent` 0 to 100."""

    index: int
    name: str
    memory_total: int
    memory_used: int
    utilization_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatus:
    """A machine of the cluster. Sizes in bytes; `cpu_percent` is of all `cpus` together, 0 to 100.

    `draining`: it is taken out of work. `unfit`: why no host of agents may run there; empty: it may.
    """

    node_id: str
    name: str
    alive: bool = True
    cpus: int = 0
    cpu_percent: float | None = None
    memory_total: int = 0
    memory_used: int | None = None
    gpu_count: int = 0
    gpus: tuple[GpuStatus, ...] = ()
    draining: bool = False
    unfit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointUse:
    """What one process has under way at a model server, by its public URL.

    `open_circuits`: how many of its pools keep away from the server for now.
    """

    url: str
    in_flight: int
    sessions: int
    last_fault: str = ""
    open_circuits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a host says of itself and of its machine. `memory` is its own, in bytes.

    `waiting` are its calls that wait for any model server.
    """

    node: MachineStatus
    memory: int
    endpoints: tuple[EndpointUse, ...] = ()
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """An actor that agents run in. `running` are its calls running, `started_at` is in seconds since 1970."""

    host_id: str
    running: int
    slots: int
    started_at: float
    alive: bool
    report: HostReport | None = None
    draining: bool = False
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """What an orchestrator tells the others of its part of the fleet. `started_at` is in seconds since 1970.

    `unfit`: nodes whose hosts it refused, by id, and why.
    """

    name: str
    started_at: float
    hosts: tuple[HostStatus, ...] = ()
    here: HostReport | None = None
    version: str = ""
    unfit: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """A model server. `running` and `waiting` are requests there, whoever sent them; the rates are 0 to 1."""

    url: str
    model: str
    profiles: tuple[str, ...]
    state: ComponentState
    message: str = ""
    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None
    prefix_cache_hit_rate: float | None = None
    latency_ms: float = 0.0


NEARLY_FULL = 0.9
"""The share of what may be stored from which on nothing new is accepted, so that what runs can end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatus:
    """How full a stream is, or under the name `all` the fleet's account. Sizes in bytes; `max_bytes` 0: no limit."""

    name: str
    messages: int
    bytes: int
    max_bytes: int

    @property
    def nearly_full(self) -> bool:
        """Whether more than `NEARLY_FULL` of the limit is in use; never without a limit."""
        return bool(self.max_bytes) and self.bytes > NEARLY_FULL * self.max_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """All of it. `measured_at` is in seconds since 1970; `replicas` are the orchestrators that told, by name.

    `tenants` have what is stored for each of them, by name.
    """

    measured_at: float
    replicas: tuple[ReplicaReport, ...]
    nodes: tuple[MachineStatus, ...]
    endpoints: tuple[EndpointStatus, ...]
    storage: tuple[StorageStatus, ...]
    tenants: tuple[StorageStatus, ...] = ()
