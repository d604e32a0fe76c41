"""Measurements of the fleet: machines, hosts, model servers, and the health of its components.

None means that no source reports a value.
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
    """The health of one dependency. `message` gives a fault's cause and its fix; latency in milliseconds."""

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

    `draining`: it gets no new work. `unfit`: why no host of agents may run there; empty: one may.
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
    """The requests of one process at a model server, identified by its public URL.

    `open_circuits`: how many of the process's pools avoid the server for now.
    """

    url: str
    in_flight: int
    sessions: int
    last_fault: str = ""
    open_circuits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """The report of a host about itself and its machine. `memory` is its own, in bytes.

    `waiting` is how many of its calls wait for any model server.
    """

    node: MachineStatus
    memory: int
    endpoints: tuple[EndpointUse, ...] = ()
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """An actor that runs agents. `running` is how many calls it runs now, `started_at` is in seconds since 1970."""

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
    """The report of an orchestrator about its part of the fleet. `started_at` is in seconds since 1970.

    `here` is about its own process; `unfit` has the nodes whose hosts it refused, by id, and why.
    """

    name: str
    started_at: float
    hosts: tuple[HostStatus, ...] = ()
    here: HostReport | None = None
    version: str = ""
    unfit: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """A model server. `running` and `waiting` count all requests there, of any sender; the rates are 0 to 1."""

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
"""From this share of the storage limit on no new task is accepted, so that running ones can finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatus:
    """How full a stream is, or, with the name `all`, the fleet's account. Sizes in bytes; `max_bytes` 0: no limit."""

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
    """The whole fleet. `measured_at` is in seconds since 1970; `replicas` are the orchestrators that reported.

    `tenants` has the storage of each tenant, by name.
    """

    measured_at: float
    replicas: tuple[ReplicaReport, ...]
    nodes: tuple[MachineStatus, ...]
    endpoints: tuple[EndpointStatus, ...]
    storage: tuple[StorageStatus, ...]
    tenants: tuple[StorageStatus, ...] = ()
