"""The status of the whole fleet: each orchestrator reports its hosts to the others, and measures all else itself.

The model servers in the settings are probed for their own metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import structlog

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.model_pool import ModelPool
from swe_ai_fleet.adapters.model_pool.load import ServerLoad, read_load
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.adapters.openai_model.faults import public_url
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import FleetError, ModelError
from swe_ai_fleet.domain.fleet_status import (
    ComponentState,
    EndpointStatus,
    EndpointUse,
    FleetStatus,
    HostReport,
    HostStatus,
    MachineStatus,
    ReplicaReport,
    StorageStatus,
)
from swe_ai_fleet.domain.job import this_release
from swe_ai_fleet.following import in_background
from swe_ai_fleet.ports import KeyValue, Replicas
from swe_ai_fleet.runtime.model_servers import ModelEndpoint, ModelServers
from swe_ai_fleet.runtime.node_load import NodeProbe, added_up, host_report, ray_node
from swe_ai_fleet.runtime.run_deps import profile_settings
from swe_ai_fleet.settings import Settings

DEFAULT_PROFILE = "default"
_PING_SECONDS = 3.0
_PING_KEPT_SECONDS = 15.0
"""The shortest time between two pings of a hosted model, however many people watch."""
T = TypeVar("T")
_log = structlog.get_logger(__name__)


@dataclass(kw_only=True)
class EndpointProbe:
    """Measures one model server by its metrics, or by a ping if it has none.

    Args:
        url: Its base URL without credentials.
        model: The model to use there; empty: the first that it lists.
    """

    url: str
    model: str
    profiles: tuple[str, ...]
    client: OpenAIChatModel
    _last: ServerLoad | None = None
    _answered_at: float = float("-inf")
    _took: float = 0.0

    async def measure(self) -> EndpointStatus:
        """The server's current status. Takes 5 seconds at most; faults of the server are part of the status."""
        asked_at = time.monotonic()
        load, rate, fault = read_load(await self.client.metrics()), None, ""
        if load is not None:
            rate, self._last = _hit_rate(load, self._last), load
        elif asked_at - self._answered_at >= _PING_KEPT_SECONDS:
            fault = await self._ping()
        if load is not None or fault or self._answered_at > asked_at:
            self._took = time.monotonic() - asked_at
        return EndpointStatus(
            url=self.url,
            model=self.model,
            profiles=self.profiles,
            state=ComponentState.DOWN if fault else ComponentState.UP,
            message=fault,
            running=load.running if load else None,
            waiting=load.waiting if load else None,
            kv_cache_usage=load.cache if load else None,
            prefix_cache_hit_rate=rate,
            latency_ms=self._took * 1000,
        )

    async def _ping(self) -> str:
        """The fault of a server that does not answer; empty if it does."""
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await self.client.ping()
        except ModelError as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {_PING_SECONDS:g} seconds"
        self._answered_at = time.monotonic()
        return ""


class EndpointProbes:
    """Probes the model servers that the settings and their profiles currently name or discover."""

    def __init__(self, settings: Settings) -> None:
        profiles: Mapping[str, Settings] = {DEFAULT_PROFILE: settings, **profile_settings(settings)}
        self._servers = {profile: ModelServers(settings=chosen) for profile, chosen in profiles.items()}
        self._probes: dict[tuple[str, str], EndpointProbe] = {}

    async def close(self) -> None:
        """Close the clients of all servers."""
        await self._close_others(())

    async def measure(self) -> tuple[EndpointStatus, ...]:
        """The current status of each server. Calls must not overlap."""
        by_server: dict[tuple[str, str], tuple[ModelEndpoint, list[str]]] = {}
        for profile, servers in self._servers.items():
            for endpoint in await servers.look():
                if endpoint.base_url:
                    key = (public_url(endpoint.base_url), endpoint.model)
                    by_server.setdefault(key, (endpoint, []))[1].append(profile)
        await self._close_others(by_server)
        for key, (endpoint, profiles) in by_server.items():
            if key not in self._probes:
                client = OpenAIChatModel(
                    base_url=endpoint.base_url,
                    model=endpoint.model,
                    api_key=endpoint.api_key,
                    timeout_seconds=_PING_SECONDS,
                )
                await client.__aenter__()
                self._probes[key] = EndpointProbe(url=key[0], model=key[1], profiles=tuple(profiles), client=client)
        measured = await asyncio.gather(*(_in_time(probe.measure(), None) for probe in self._probes.values()))
        return tuple(status for status in measured if status is not None)

    async def _close_others(self, keys: Collection[tuple[str, str]]) -> None:
        for key in self._probes.keys() - keys:
            await self._probes.pop(key).client.__aexit__()


def _hit_rate(load: ServerLoad, before: ServerLoad | None) -> float | None:
    """The fraction of tokens found in the prefix cache: since the last measurement, else since the server's start."""
    hits, queries = load.prefix_hits, load.prefix_queries
    if before is not None and queries > before.prefix_queries and hits >= before.prefix_hits:
        hits, queries = hits - before.prefix_hits, queries - before.prefix_queries
    return min(1.0, hits / queries) if queries else None


BUCKET = "fleet-view"
_REPORT_EVERY_SECONDS = 5.0
_KEPT_SECONDS = 20.0
_FRESH_SECONDS = 3.0
_LOOK_SECONDS = 6.0
"""The time limit of each part of the status; a late part is left out."""


class Measurable(Protocol):
    """The agents' machines and hosts; `unfit` are the machines that may have no host, with the reason."""

    @property
    def nodes(self) -> tuple[MachineStatus, ...]: ...

    @property
    def unfit(self) -> Mapping[str, str]: ...

    async def measure(self) -> tuple[HostStatus, ...]:
        """The current status of every host. Takes some seconds at most; never raises."""
        ...


@dataclass(kw_only=True)
class MeasuredFleetView:
    """Measures the fleet; a recent measurement is returned again. Made by `open_fleet_view`."""

    replicas: Replicas
    fleet: Measurable
    log_usage: LogUsage
    model: ModelPool
    store: KeyValue
    endpoints: EndpointProbes
    probe: NodeProbe
    stored: Callable[[], Iterable[StorageStatus]]
    started_at: float = field(default_factory=time.time)
    _measuring: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: FleetStatus | None = None

    @property
    def me(self) -> str:
        return self.replicas.me

    async def status(self) -> FleetStatus:
        """The fleet as of at most 3 seconds ago. Takes 6 seconds at most; parts that do not answer are left out."""
        async with self._measuring:
            if self._last is None or time.time() - self._last.measured_at > _FRESH_SECONDS:
                self._last = await self._measure()
            return self._last

    async def publish_reports(self) -> None:
        """Report this orchestrator's hosts to the others, if there are any, until cancelled."""
        while True:
            try:
                if self.replicas.alive() != {self.me}:
                    await self.store.put(self.me, to_json(await self._report()))
            except FleetError as error:
                _log.info("fleet_view.not_reported", reason=error.message)
            await asyncio.sleep(_REPORT_EVERY_SECONDS)

    async def _measure(self) -> FleetStatus:
        own, others, endpoints, storage = await asyncio.gather(
            self._report(),
            _in_time(self._other_replicas(), ()),
            self.endpoints.measure(),
            _in_time(self.log_usage.storage(), ()),
        )
        replicas = (own, *(replica for replica in others if replica.name != self.me))
        return FleetStatus(
            measured_at=time.time(),
            replicas=replicas,
            nodes=_measured(self.fleet.nodes, replicas),
            endpoints=endpoints,
            storage=storage,
            tenants=tuple(self.stored()),
        )

    async def _report(self) -> ReplicaReport:
        hosts, own_process = await asyncio.gather(self.fleet.measure(), host_report(self.probe, {"": self.model}))
        version, unfit = str(this_release()), self.fleet.unfit
        return ReplicaReport(
            name=self.me, started_at=self.started_at, hosts=hosts, here=own_process, version=version, unfit=unfit
        )

    async def _other_replicas(self) -> tuple[ReplicaReport, ...]:
        reports: list[ReplicaReport] = []
        for entry in await self.store.entries():
            try:
                reports.append(from_json(ReplicaReport, entry.value))
            except ValueError:
                _log.warning("fleet_view.unreadable", key=entry.key)
        return tuple(reports)


class LogUsage:
    """The storage that the log uses; callers within some seconds share one measurement."""

    def __init__(self, log: JetStream, *, seconds: float = _FRESH_SECONDS) -> None:
        self._log = log
        self._seconds = seconds
        self._asking = asyncio.Lock()
        self._storage: tuple[StorageStatus, ...] = ()
        self._fresh_until = 0.0

    async def storage(self) -> tuple[StorageStatus, ...]:
        """The streams and, as `all`, the account. Raises NotFound, Unavailable."""
        async with self._asking:
            if time.monotonic() >= self._fresh_until:
                usage = await self._log.usage()
                self._storage = tuple(
                    StorageStatus(name=name, messages=stream.messages, bytes=stream.bytes, max_bytes=stream.max_bytes)
                    for name, stream in usage.items()
                )
                self._fresh_until = time.monotonic() + self._seconds
            return self._storage


@asynccontextmanager
async def open_fleet_view(
    settings: Settings,
    *,
    replicas: Replicas,
    fleet: Measurable,
    log: JetStream,
    log_usage: LogUsage,
    model: ModelPool,
    stored: Callable[[], Iterable[StorageStatus]],
) -> AsyncGenerator[MeasuredFleetView]:
    """The view of this orchestrator's fleet, until the context ends. Raises FleetError."""
    store = await log.bucket(BUCKET, ttl_seconds=_KEPT_SECONDS)
    view = MeasuredFleetView(
        replicas=replicas,
        fleet=fleet,
        log_usage=log_usage,
        model=model,
        store=store,
        endpoints=EndpointProbes(settings),
        probe=NodeProbe(ray_node()),
        stored=stored,
    )
    try:
        async with in_background(view.publish_reports(), name="fleet view"):
            yield view
    finally:
        await view.endpoints.close()
        # The others then need not wait until the report expires.
        await _in_time(store.delete(replicas.me), None)


def endpoint_use(status: FleetStatus) -> dict[str, EndpointUse]:
    """The running calls of all orchestrators and their hosts, by model server."""
    uses = (use for replica in status.replicas for report in _reports(replica) for use in report.endpoints)
    return {use.url: use for use in added_up(uses)}


def _measured(nodes: Iterable[MachineStatus], replicas: Iterable[ReplicaReport]) -> tuple[MachineStatus, ...]:
    """The machines with their measurements, also those that only a report names."""
    by_id = {node.node_id: node for node in nodes}
    for replica in replicas:
        for report in _reports(replica):
            reported, earlier = report.node, by_id.get(report.node.node_id)
            gpus = max(reported.gpu_count, earlier.gpu_count if earlier is not None else 0)
            alive = earlier.alive if earlier is not None else True
            by_id[reported.node_id] = replace(reported, gpu_count=gpus, alive=alive)
    for node_id, why in (entry for replica in replicas for entry in replica.unfit.items()):
        if node_id in by_id:
            by_id[node_id] = replace(by_id[node_id], unfit=why)
    return tuple(sorted(by_id.values(), key=lambda node: (node.name, node.node_id)))


def _reports(replica: ReplicaReport) -> list[HostReport]:
    return [report for report in (replica.here, *(host.report for host in replica.hosts)) if report is not None]


async def _in_time(measurement: Awaitable[T], otherwise: T) -> T:
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            return await measurement
    except (FleetError, TimeoutError) as error:
        _log.info("fleet_view.part_missing", reason=str(error))
        return otherwise
