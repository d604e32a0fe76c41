"""The fleet on Ray: a pool of hosts; the least busy host is used first, lost hosts are replaced.

A new host reports its release before its first call. An incompatible host is ended, and its node gets no other.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import ray
import structlog
from ray._private.state import state
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.assignment import Assignment
from swe_ai_fleet.domain.errors import AgentLost, FleetError, InternalFault, Unavailable
from swe_ai_fleet.domain.fleet_status import Component, ComponentState, HostStatus, MachineStatus
from swe_ai_fleet.domain.job import this_release
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.following import in_background
from swe_ai_fleet.runtime.host_logins import HostLogins
from swe_ai_fleet.runtime.local_ray import ray_nodes
from swe_ai_fleet.runtime.ray_host import RayHost
from swe_ai_fleet.runtime.ray_jobs.agent_host import AgentHost
from swe_ai_fleet.runtime.ray_jobs.vllm_agent_job import VLLMAgentJob
from swe_ai_fleet.runtime.replicas import Drain, Drains, DrainTarget
from swe_ai_fleet.settings import Settings, without_login

_log = structlog.get_logger()

T = TypeVar("T")
_CANCEL_SECONDS = 15.0
_LOOK_SECONDS, _IDLE_LOOK_SECONDS = 2.0, 10.0
"""Seconds until nodes that join or leave are noticed, with and without work. Ray sends no notification."""
_WARM_SECONDS = 120.0
_MEASURED = 64
_CHECKS_PER_HOST = 8
"""Calls beside a host's agents, so that the check of a finished candidate never waits for an agent."""


class _HostRefused(Exception):
    """A host of an incompatible release, or one that ended before its call began."""


@dataclass(kw_only=True)
class RayFleet:
    """Runs agents and checks on pooled `AgentHost` actors, or one `VLLMAgentJob` each with `agents_per_actor=1`.

    Made by `open_ray_fleet`; Ray must be initialised.

    Attributes:
        logins: Grants hosts' logins to NATS; None: hosts use that of `settings`.
        me: This orchestrator's name, which prefixes its hosts' names in drains.
        unfit: Why the hosts of a node are incompatible, by the node's id.
    """

    settings: Settings
    logins: HostLogins | None = None
    drains: Drains | None = None
    me: str = ""
    nodes: tuple[MachineStatus, ...] = ()
    unfit: dict[str, str] = field(default_factory=dict[str, str])
    _hosts: list[RayHost] = field(default_factory=list[RayHost])
    _ending: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _open_nodes: int = 1
    _draining: set[str] = field(default_factory=set[str])
    _cluster: tuple[list[dict[str, Any]], set[str]] | None = None
    """All nodes, dead ones included, and the ids of those that Ray itself drains."""
    _names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def running(self) -> int:
        """The running calls on all hosts."""
        return sum(host.busy for host in self._hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.name for host in self._hosts)

    async def run(self, assignment: Assignment[T]) -> T:
        """Run one assignment on the least busy host. Raises AgentLost when the host dies, FleetErrors of the work."""
        document = to_json(assignment)
        value = await self._call(
            lambda actor, login: actor.run_assignment.remote(assignment.kind, document, login), assignment.task.tenant
        )
        return from_json(assignment.gives, value)

    async def forget(self, tenant: str, executions: Sequence[str], uploads: Sequence[str], *, whole: bool) -> None:
        """Have every node remove the files of ended executions; see `GitWorkspaceProvider.forget`.

        Raises Unavailable where a node did not; call it again then.
        """
        task = cast("Any", ray.remote(_forget))
        arguments = self.host_settings(), tenant, list(executions), list(uploads), whole
        nodes = [node["NodeID"] for node in ray_nodes() if node["Alive"]] if self.settings.ray_address else []
        strategies = (NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes)
        try:
            await asyncio.gather(
                *(task.options(num_cpus=0, scheduling_strategy=strategy).remote(*arguments) for strategy in strategies)
            )
        except RayError as error:
            fault = f"a Ray node did not erase its caches: {type(error).__name__}"
            raise Unavailable(fault, hint="erase again") from None

    def component(self) -> Component:
        """The state of Ray for this process."""
        message = f"{counted(len(self._hosts), 'host')}, {counted(self.running, 'call')} running"
        state = ComponentState.UP if ray.is_initialized() else ComponentState.DOWN
        if self.unfit:
            state = ComponentState.DEGRADED if state is ComponentState.UP else state
            node_id, why = min(self.unfit.items())
            message += f"; {counted(len(self.unfit), 'node')} of another release, such as {node_id[:12]} ({why}), "
            message += "gets no agents: give Ray nodes and orchestrators the same image"
        return Component(name="ray", state=state, message=message, version=ray.__version__)

    async def measure(self) -> tuple[HostStatus, ...]:
        """The status of every host; without an answer within 2 seconds it is not alive. Raises nothing."""
        # A host without a release is still starting.
        started = [host for host in self._hosts if host.release is not None][:_MEASURED]
        reports = await asyncio.gather(*(host.report() for host in started))
        by_name = dict(zip((host.name for host in started), reports, strict=True))
        return tuple(
            HostStatus(
                host_id=host.name,
                running=host.busy,
                slots=self.settings.agents_per_actor,
                started_at=host.started_at,
                alive=host.name not in by_name or by_name[host.name] is not None,
                report=by_name.get(host.name),
                draining=self._is_drained(host),
                version=str(host.release or ""),
            )
            for host in self._hosts
        )

    async def warm(self) -> None:
        """Start the first host, so that the first task finds it ready; without a pool this does nothing."""
        if self._one_agent_per_actor:
            return
        try:
            async with asyncio.timeout(_WARM_SECONDS):
                await self._call(lambda actor, login: actor.ready.remote(login), DEFAULT_TENANT)
        except (AgentLost, TimeoutError) as error:
            # The first task starts another host, or waits for a node with room.
            _log.warning("the first host is not ready", reason=str(error), unfit=len(self.unfit))

    async def look(self) -> None:
        """List the nodes; end hosts that are drained, and all but one that were idle for `ray_idle_seconds`."""
        if self.settings.ray_address or self._cluster is None:
            # A private Ray always has the same node.
            self._cluster = await asyncio.to_thread(lambda: (ray_nodes(), set(state.get_draining_nodes())))
        nodes, self._draining = self._cluster
        self.nodes = tuple(
            MachineStatus(
                node_id=str(node["NodeID"]),
                name=str(node.get("NodeManagerHostname") or ""),
                alive=bool(node["Alive"]),
                cpus=int(node["Resources"].get("CPU", 0)),
                memory_total=int(node["Resources"].get("memory", 0)),
                gpu_count=int(node["Resources"].get("GPU", 0)),
            )
            for node in nodes
        )
        alive: dict[str, dict[str, float]] = {node["NodeID"]: node["Resources"] for node in nodes if node["Alive"]}
        # Dead nodes are dropped, since a restarted node has another id.
        self.unfit = {node_id: why for node_id, why in self.unfit.items() if node_id in alive}
        closed, required = self._closed_nodes(), self.settings.ray_resources.items()
        self._open_nodes = sum(
            node_id not in closed and all(offered.get(name, 0.0) >= amount for name, amount in required)
            for node_id, offered in alive.items()
        )
        before = time.monotonic() - (self.settings.ray_idle_seconds or math.inf)
        for number, host in enumerate(tuple(self._hosts)):
            drain, drained = self._drain(host), self._is_drained(host)
            idle = not host.busy and (drained or (number and host.idle_since < before))
            if idle or (drain is not None and drain.over):
                _log.info("a host ends", host=host.name, drained=drained, calls=host.busy)
                self._end(host)

    def _is_drained(self, host: RayHost) -> bool:
        """Whether a host gets no more calls: it or its node is drained by an operator, or its node by Ray."""
        return host.node_id in self._draining or self._drain(host) is not None

    def _drain(self, host: RayHost) -> Drain | None:
        if self.drains is None:
            return None
        own = self.drains.get(DrainTarget.HOST, f"{self.me}.{host.name}")
        return own or self.drains.get(DrainTarget.NODE, host.node_id)

    def _closed_nodes(self) -> list[str]:
        """The nodes that get no new host."""
        drained = self.drains.names(DrainTarget.NODE) if self.drains is not None else ()
        return sorted({*self._draining, *self.unfit, *drained})

    async def close(self) -> None:
        """End every host with its calls."""
        for host in tuple(self._hosts):
            self._end(host)
        await asyncio.gather(*self._ending)

    async def _call(self, call: Callable[[Any, str], Awaitable[Any]], tenant: str) -> bytes:
        while True:
            host = self._choose_host(tenant)
            host.busy += 1
            try:
                return await self._settled(call(host.actor, await self._login(host)))
            except _HostRefused:
                continue
            except RayError as error:
                # An unreachable host must stop before its replacement starts.
                self._end(host)
                raise AgentLost(f"{host.name} died while it ran this ({type(error).__name__})") from None
            finally:
                host.busy -= 1
                host.idle_since = time.monotonic()
                if self._one_agent_per_actor and host in self._hosts:
                    self._end(host)

    async def _settled(self, reference: Awaitable[Any]) -> Any:
        """The value of a call, which is cancelled with its caller. Raises the call's own fault."""
        call = asyncio.ensure_future(reference)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            ray.cancel(reference)
            await asyncio.wait([call], timeout=_CANCEL_SECONDS)
            if call.done() and not call.cancelled():
                call.exception()  # retrieved, so that asyncio does not log the fault that this cancellation caused
            raise
        except RayTaskError as error:
            fault = _cause(error)
            if isinstance(fault, FleetError):
                raise fault from None
            _log.error("a run failed with an internal error", fault=type(fault).__name__, trace=str(error))
            raise InternalFault(f"a run failed with an internal error ({type(fault).__name__}); see the log") from error

    async def _login(self, host: RayHost) -> str:
        """A host's login to NATS, granted at its first call. Raises _HostRefused, RayError, Unavailable."""
        async with host.granting:
            if host.release is None and (fault := this_release().misfit(await host.greet())):
                self.unfit[host.node_id] = fault
                _log.error("a host was refused", host=host.name, node=host.node_id, reason=fault)
                self._end(host)
            if host not in self._hosts:
                raise _HostRefused
            if self.logins is not None and not host.login:
                host.login = await self.logins.grant(host.tenant)
            return host.login

    def _choose_host(self, tenant: str) -> RayHost:
        """The tenant's least busy host with room, else a new one; each node gets one host before any gets a second.

        No host ever serves two tenants. At the limit of hosts, another tenant's idle host is ended; if all are busy,
        a tenant without any gets one beyond the limit.
        """
        of_tenant = [host for host in self._hosts if host.tenant == tenant and not self._is_drained(host)]
        spread = len(of_tenant) < self._open_nodes and all(host.busy for host in of_tenant)
        free = [] if spread else [host for host in of_tenant if host.busy < self.settings.agents_per_actor]
        if free:
            return min(free, key=lambda host: host.busy)
        if len(self._hosts) * self.settings.agents_per_actor >= self.settings.max_agents:
            idle = next((host for host in self._hosts if host not in of_tenant and not host.busy), None)
            if idle is not None:
                self._end(idle)
            elif of_tenant:
                return min(of_tenant, key=lambda host: host.busy)
        host = self._new_host(f"agent-host-{next(self._names)}", tenant)
        self._hosts.append(host)
        return host

    def host_settings(self) -> str:
        """The settings of hosts as JSON, without the orchestrator's secrets that agents do not need."""
        withheld: dict[str, object] = dict.fromkeys(
            ("orchestrator_token", "telegram_token", "ray_token", "audit_signing_key"), ""
        )
        withheld |= {"nats_issuer_file": None}
        if self.logins is not None:
            withheld |= {
                "nats_nkey_file": None,
                "nats_token": "",
                "nats_url": without_login(self.settings.nats_url),
            }
        return self.settings.model_copy(update=withheld).model_dump_json()

    def _new_host(self, name: str, tenant: str) -> RayHost:
        settings = self.host_settings()
        options: dict[str, Any] = {
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
            "resources": dict(self.settings.ray_resources),
        }
        if closed := self._closed_nodes():
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(closed)})"}
        if self._one_agent_per_actor:
            actor = cast("Any", VLLMAgentJob).options(**options).remote(name, "DEV", settings=settings)
        else:
            room = max(self.settings.agents_per_actor, self.settings.max_agents) + _CHECKS_PER_HOST
            pooled = cast("Any", ray.remote(AgentHost))
            actor = pooled.options(**options, max_concurrency=room).remote(settings, name)
        return RayHost(name=name, actor=actor, tenant=tenant)

    @property
    def _one_agent_per_actor(self) -> bool:
        """Whether every agent gets its own actor, which ends with it."""
        return self.settings.agents_per_actor == 1

    def _end(self, host: RayHost) -> None:
        """End a host, which gets no more calls: a busy one at once, an idle one once its runs' clones are removed."""
        if host in self._hosts:
            self._hosts.remove(host)
        idle = not host.busy
        if not idle:
            host.kill()
        ending = asyncio.create_task(self._ended(host, idle=idle), name="end of a host")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _ended(self, host: RayHost, *, idle: bool) -> None:
        if idle:
            await host.settle()
            host.kill()
        if self.logins is not None and host.login:
            await self.logins.end(host.login)


@asynccontextmanager
async def open_ray_fleet(
    settings: Settings, logins: HostLogins | None = None, *, drains: Drains | None = None, me: str = ""
) -> AsyncGenerator[RayFleet]:
    """A fleet on the Ray this process is connected to; its hosts end with the context."""
    fleet = RayFleet(settings=settings, logins=logins, drains=drains, me=me)

    async def look() -> None:
        while True:
            at_work = fleet.running or len(fleet.hosts) > 1 or not (drains is None or drains.empty)
            pause = _LOOK_SECONDS if at_work else _IDLE_LOOK_SECONDS
            await (asyncio.sleep(pause) if drains is None else drains.changed(pause))
            await fleet.look()

    try:
        await fleet.look()
        async with in_background(look(), name="ray-hosts"):
            yield fleet
    finally:
        await fleet.close()


def _forget(settings: str, tenant: str, executions: list[str], uploads: list[str], whole: bool) -> None:
    from swe_ai_fleet.runtime.factories import workspace_provider

    provider = workspace_provider(Settings.model_validate_json(settings))
    asyncio.run(provider.forget(tenant, executions, uploads, whole=whole))


def _cause(error: RayTaskError) -> BaseException:
    cause: object = error
    while isinstance(cause, RayTaskError):
        cause = cast("object", cause.cause)
    return cause if isinstance(cause, BaseException) else error
