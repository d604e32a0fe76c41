"""The fleet on Ray: a pool of hosts, the least busy one first, a lost one replaced.

A new host tells its release before it is given anything. One that does not fit ends, and its node gets no other.
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
"""Nodes that join or leave are noticed after so long, with and without work. Ray tells nobody of them."""
_WARM_SECONDS = 120.0
_MEASURED = 64
_CHECKS_PER_HOST = 8
"""Room beside a host's agents, so that the check of a finished candidate never waits for an agent."""


class _Misfit(Exception):
    """A host that may not work for this orchestrator, or has ended before it began."""


@dataclass(kw_only=True)
class RayFleet:
    """Runs agents and checks on pooled `AgentHost` actors, or one `VLLMAgentJob` each with `agents_per_actor=1`.

    Made by `open_ray_fleet`; Ray must be initialised.

    Attributes:
        logins: Lets hosts log in to NATS; None: with what `settings` have.
        me: This orchestrator, by whose name its hosts are drained.
        unfit: Nodes whose hosts are of a release that does not fit, and why, by id.
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
    """All nodes, those that are gone among them, and the ids of those that Ray itself drains."""
    _names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def running(self) -> int:
        """Calls under way on all hosts."""
        return sum(host.busy for host in self._hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.name for host in self._hosts)

    async def run(self, assignment: Assignment[T]) -> T:
        """One assignment on the least busy host. Raises AgentLost when the host dies, FleetErrors of the work."""
        sent = to_json(assignment)
        value = await self._call(
            lambda actor, login: actor.run_assignment.remote(assignment.kind, sent, login), assignment.task.tenant
        )
        return from_json(assignment.gives, value)

    async def forget(self, tenant: str, executions: Sequence[str], uploads: Sequence[str], *, whole: bool) -> None:
        """Have every node remove what it keeps of ended executions; see `GitWorkspaceProvider.forget`.

        Raises Unavailable where a node did not: it is to be asked again.
        """
        task = cast("Any", ray.remote(_forget))
        about = self.host_settings(), tenant, list(executions), list(uploads), whole
        nodes = [node["NodeID"] for node in ray_nodes() if node["Alive"]] if self.settings.ray_address else []
        places = (NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes)
        try:
            await asyncio.gather(
                *(task.options(num_cpus=0, scheduling_strategy=place).remote(*about) for place in places)
            )
        except RayError as error:
            fault = f"a Ray node did not erase its caches: {type(error).__name__}"
            raise Unavailable(fault, hint="erase again") from None

    def component(self) -> Component:
        """Ray, as it is seen from here."""
        message = f"{counted(len(self._hosts), 'host')}, {counted(self.running, 'call')} running"
        state = ComponentState.UP if ray.is_initialized() else ComponentState.DOWN
        if self.unfit:
            state = ComponentState.DEGRADED if state is ComponentState.UP else state
            node_id, why = min(self.unfit.items())
            message += f"; {counted(len(self.unfit), 'node')} of another release, such as {node_id[:12]} ({why}), "
            message += "gets no agents: give Ray nodes and orchestrators the same image"
        return Component(name="ray", state=state, message=message, version=ray.__version__)

    async def measure(self) -> tuple[HostStatus, ...]:
        """Every host as it is now; one that does not answer within 2 seconds counts as not alive. Raises nothing."""
        # A host without a release is still being started.
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
                draining=self._leaves(host),
                version=str(host.release or ""),
            )
            for host in self._hosts
        )

    async def warm(self) -> None:
        """Start the first host, so that the first task finds it ready; without a pool there is none to warm."""
        if self._alone:
            return
        try:
            async with asyncio.timeout(_WARM_SECONDS):
                await self._call(lambda actor, login: actor.ready.remote(login), DEFAULT_TENANT)
        except (AgentLost, TimeoutError) as error:
            # The first task starts another one, or waits for a node that takes it.
            _log.warning("the first host is not ready", reason=str(error), unfit=len(self.unfit))

    async def look(self) -> None:
        """See which nodes there are. Drained hosts end, and all but one after `ray_idle_seconds` without work."""
        if self.settings.ray_address or self._cluster is None:
            # A Ray of this process's own has one node, for ever.
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
        # What is gone does not count against anything any more: its successor has another id.
        self.unfit = {node_id: why for node_id, why in self.unfit.items() if node_id in alive}
        closed, required = self._closed(), self.settings.ray_resources.items()
        self._open_nodes = sum(
            node_id not in closed and all(offered.get(name, 0.0) >= amount for name, amount in required)
            for node_id, offered in alive.items()
        )
        before = time.monotonic() - (self.settings.ray_idle_seconds or math.inf)
        for number, host in enumerate(tuple(self._hosts)):
            drain, leaves = self._drain(host), self._leaves(host)
            idle = not host.busy and (leaves or (number and host.idle_since < before))
            if idle or (drain is not None and drain.over):
                _log.info("a host ends", host=host.name, drained=leaves, calls=host.busy)
                self._end(host)

    def _leaves(self, host: RayHost) -> bool:
        """Whether a host is given nothing more: it is drained, or its node is, by an operator or by Ray."""
        return host.node_id in self._draining or self._drain(host) is not None

    def _drain(self, host: RayHost) -> Drain | None:
        if self.drains is None:
            return None
        own = self.drains.get(DrainTarget.HOST, f"{self.me}.{host.name}")
        return own or self.drains.get(DrainTarget.NODE, host.node_id)

    def _closed(self) -> list[str]:
        """The nodes that get no host."""
        drained = self.drains.names(DrainTarget.NODE) if self.drains is not None else ()
        return sorted({*self._draining, *self.unfit, *drained})

    async def close(self) -> None:
        """End every host and what runs on it."""
        for host in tuple(self._hosts):
            self._end(host)
        await asyncio.gather(*self._ending)

    async def _call(self, call: Callable[[Any, str], Awaitable[Any]], tenant: str) -> bytes:
        while True:
            host = self._host(tenant)
            host.busy += 1
            try:
                return await self._settled(call(host.actor, await self._login(host)))
            except _Misfit:
                continue
            except RayError as error:
                # An unreachable host must stop before its replacement starts.
                self._end(host)
                raise AgentLost(f"{host.name} died while it ran this ({type(error).__name__})") from None
            finally:
                host.busy -= 1
                host.idle_since = time.monotonic()
                if self._alone and host in self._hosts:
                    self._end(host)

    async def _settled(self, reference: Awaitable[Any]) -> Any:
        """The call's value; its fault as the exception it was; cancelled together with the caller."""
        call = asyncio.ensure_future(reference)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            ray.cancel(reference)
            await asyncio.wait([call], timeout=_CANCEL_SECONDS)
            if call.done() and not call.cancelled():
                call.exception()  # looked at, so that nobody complains about a fault that was ours to cause
            raise
        except RayTaskError as error:
            fault = _cause(error)
            if isinstance(fault, FleetError):
                raise fault from None
            _log.error("a run failed with an internal error", fault=type(fault).__name__, trace=str(error))
            raise InternalFault(f"a run failed with an internal error ({type(fault).__name__}); see the log") from error

    async def _login(self, host: RayHost) -> str:
        """How a host logs in to NATS, granted with the first call to it. Raises _Misfit, RayError, Unavailable."""
        async with host.granting:
            if host.release is None and (fault := this_release().misfit(await host.greet())):
                self.unfit[host.node_id] = fault
                _log.error("a host was refused", host=host.name, node=host.node_id, reason=fault)
                self._end(host)
            if host not in self._hosts:
                raise _Misfit
            if self.logins is not None and not host.login:
                host.login = await self.logins.grant(host.tenant)
            return host.login

    def _host(self, tenant: str) -> RayHost:
        """The tenant's least busy host with room, else a new one; every node gets one before any gets a second.

        No host ever serves two tenants. Where there may be no more, one that does nothing for another tenant ends; only
        where all of them work, a tenant without any gets one beyond.
        """
        mine = [host for host in self._hosts if host.tenant == tenant and not self._leaves(host)]
        spread = len(mine) < self._open_nodes and all(host.busy for host in mine)
        free = [] if spread else [host for host in mine if host.busy < self.settings.agents_per_actor]
        if free:
            return min(free, key=lambda host: host.busy)
        if len(self._hosts) * self.settings.agents_per_actor >= self.settings.max_agents:
            idle = next((host for host in self._hosts if host not in mine and not host.busy), None)
            if idle is not None:
                self._end(idle)
            elif mine:
                return min(mine, key=lambda host: host.busy)
        host = self._new_host(f"agent-host-{next(self._names)}", tenant)
        self._hosts.append(host)
        return host

    def host_settings(self) -> str:
        """What hosts are made with (JSON): as little of the orchestrator's secrets as agents can do with."""
        withheld: dict[str, object] = dict.fromkeys(
            ("orchestrator_token", "telegram_token", "ray_token", "audit_signing_key"), ""
        )
        withheld |= {"nats_issuer_file": None}
        if self.logins is not None:
            withheld |= {"nats_nkey_file": None, "nats_token": "", "nats_url": without_login(self.settings.nats_url)}
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
        if closed := self._closed():
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(closed)})"}
        if self._alone:
            actor = cast("Any", VLLMAgentJob).options(**options).remote(name, "DEV", settings=settings)
        else:
            room = max(self.settings.agents_per_actor, self.settings.max_agents) + _CHECKS_PER_HOST
            pooled = cast("Any", ray.remote(AgentHost))
            actor = pooled.options(**options, max_concurrency=room).remote(settings, name)
        return RayHost(name=name, actor=actor, tenant=tenant)

    @property
    def _alone(self) -> bool:
        """Whether every agent gets an actor of its own, which ends with it."""
        return self.settings.agents_per_actor == 1

    def _end(self, host: RayHost) -> None:
        """Give it nothing more, and end it: at once while it works, else after what its last runs left is gone."""
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
