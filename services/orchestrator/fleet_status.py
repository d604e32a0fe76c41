"""The calls about the fleet and its councils: its current state, drains, and the members of councils."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import principal, tenant
from swe_ai_fleet.contract import from_enum, from_message, to_message
from swe_ai_fleet.domain.access import AccessRole, Principal
from swe_ai_fleet.domain.council import Council, CouncilMember
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound, PermissionDenied, fields_named
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.fleet_status import (
    Component,
    ComponentState,
    EndpointStatus,
    EndpointUse,
)
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Role
from swe_ai_fleet.domain.text import counted, milliseconds
from swe_ai_fleet.orchestrator.council_store import CouncilStore
from swe_ai_fleet.orchestrator.councils import at_work, council_name
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.fleet_view import MeasuredFleetView, endpoint_use
from swe_ai_fleet.runtime.replicas import Drains, DrainTarget

_CONFIG_FIELDS = {
    "rounds": "config.deliberation_rounds",
    "model_profile": "config.model_profile",
    "agent_type": "config.agent_type",
    "custom_params": "config.custom_params",
}
_AGENT_FIELDS = {
    "model_profile": "capabilities.model_profile",
    "max_concurrent_tasks": "capabilities.max_concurrent_tasks",
}


@dataclass(frozen=True, kw_only=True)
class CouncilCalls:
    """Carries out the calls about councils.

    Attributes:
        states: A tenant's executions that have not ended, as far as this orchestrator knows.
        models: The model of each profile, by name; the default profile's name is empty.
    """

    store: CouncilStore
    states: Callable[[str], Sequence[ExecutionState]]
    models: Mapping[str, str] = field(default_factory=dict[str, str])

    async def create(self, request: pb.CreateCouncilRequest) -> pb.CreateCouncilResponse:
        config = request.config
        role = _role(request.role)
        settings = Council(
            council_id=council_name(role),
            role=role,
            members=(),
            rounds=config.deliberation_rounds,
            peer_review=config.enable_peer_review or config.deliberation_rounds > 0 or not request.HasField("config"),
            model_profile=config.model_profile,
            agent_type=config.agent_type,
            custom_params=dict(config.custom_params),
        )
        with fields_named(lambda head: _CONFIG_FIELDS.get(head, head)):
            council = await self.store.create(tenant(), settings, num_agents=request.num_agents)
        return pb.CreateCouncilResponse(
            council_id=council.council_id,
            agents_created=len(council.members),
            agent_ids=[member.agent_id for member in council.members],
        )

    async def list(self, request: pb.ListCouncilsRequest) -> pb.ListCouncilsResponse:
        role = _role(request.role_filter, field="role_filter") if request.role_filter else None
        councils = await self.store.list(tenant(), role)
        states = self.states(tenant())
        return pb.ListCouncilsResponse(
            councils=[self._info(each, at_work(states, each.role), agents=request.include_agents) for each in councils]
        )

    async def counts(self) -> pb.CouncilMetrics:
        """How many councils there are, how many of them have an agent at work, and their agents. Raises Unavailable."""
        councils, states = await self.store.list(tenant()), self.states(tenant())
        working = {council.council_id: at_work(states, council.role) for council in councils}
        return pb.CouncilMetrics(
            total=len(councils),
            active=sum(
                any(working[council.council_id].get(each.agent_id) for each in council.members) for council in councils
            ),
            agents=sum(len(council.members) for council in councils),
        )

    async def delete(self, request: pb.DeleteCouncilRequest) -> pb.DeleteCouncilResponse:
        role = _role(request.role)
        deletion = await self.store.delete(tenant(), role)
        if deletion.council is None:
            return pb.DeleteCouncilResponse(message=f"{role} has no council")
        kind = "the default council" if deletion.was_default else "the council"
        return pb.DeleteCouncilResponse(
            success=True,
            message=f"{kind} of {role} is deleted; agents are made for each of its tasks",
            agents_removed=len(deletion.council.members),
        )

    async def register(self, request: pb.RegisterAgentRequest) -> pb.RegisterAgentResponse:
        role = _role(request.role)
        member = from_message(
            CouncilMember,
            request.capabilities,
            agent_id=request.agent_id,
            endpoint=request.endpoint,
            metadata=dict(request.metadata),
        )
        with fields_named(lambda head: _AGENT_FIELDS.get(head, head)):
            done = await self.store.register(tenant(), role, member)
        size = len(done.council.members)
        message = f"{request.agent_id} {'is registered anew' if done.known else 'has joined'}; {size} in the council"
        return pb.RegisterAgentResponse(success=True, message=message, council_id=done.council.council_id)

    async def unregister(self, request: pb.UnregisterAgentRequest) -> pb.UnregisterAgentResponse:
        role = _role(request.role)
        if not request.agent_id:
            raise InvalidRequest("no agent id given", field="agent_id")
        if await self.store.unregister(tenant(), role, request.agent_id):
            return pb.UnregisterAgentResponse(success=True, message="the agent has left; what it works for goes on")
        return pb.UnregisterAgentResponse(message=f"no such agent in the council of {role}")

    def _info(self, council: Council, working: Mapping[str, int], *, agents: bool) -> pb.CouncilInfo:
        busy = bool(council.members) and all(working.get(each.agent_id) for each in council.members)
        names = [name.strip() for name in council.model_profile.split(",")] or [""]
        return pb.CouncilInfo(
            council_id=council.council_id,
            role=str(council.role),
            num_agents=len(council.members),
            agents=[
                to_message(
                    pb.AgentInfo,
                    member,
                    capabilities=to_message(pb.AgentCapabilities, member),
                    running_tasks=working.get(member.agent_id, 0),
                )
                for member in (council.members if agents else ())
            ],
            status="busy" if busy else "active" if council.members else "empty",
            model=", ".join(filter(None, (self.models.get(name, "") for name in names))),
        )


def _role(text: str, *, field: str = "role") -> Role:
    """The named role; there is no default, since the call may create or delete. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest("no role given", field=field, hint=f"one of {', '.join(Role)}")
    with fields_named(lambda _: field):
        return Role.parse(text)


MAX_MESSAGE_CHARS = 500
_COUNCIL_SECONDS = 3.0
_MOST_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class FleetStatuses:
    executions: Executions
    view: MeasuredFleetView
    drains: Drains

    async def fill(self, reply: pb.GetStatusResponse) -> None:
        """Add the fleet's current state to a status. Hosts, machines and model servers are shown to admins only."""
        status, own_name = await self.view.status(), self.view.me
        replicas = {replica.name: replica for replica in status.replicas}
        load = self.executions.load()
        unfinished = self.executions.projection.unfinished(tenant())
        driven = Counter(state.owner for state in unfinished if state.owner and not state.status.terminal)
        # A drained one has returned its lease, but is listed as long as it reports.
        drained = self.drains.names(DrainTarget.ORCHESTRATOR)
        names = sorted({*load.replicas, own_name, *(drained & replicas.keys())})
        use = endpoint_use(status)
        reply.queue.CopyFrom(_queue(unfinished, most=load.room.queued))
        reply.measured_at_ms = int(status.measured_at * 1000)
        if not principal().may(AccessRole.ADMIN):
            return
        reply.hosts.extend(
            to_message(
                pb.HostStatus,
                host,
                node_id=host.report.node.node_id if host.report else "",
                replica=replica.name,
                started_at_ms=int(host.started_at * 1000),
                memory_bytes=host.report.memory if host.report else 0,
            )
            for replica in status.replicas
            for host in replica.hosts
        )
        drained_nodes = self.drains.names(DrainTarget.NODE)
        nodes = (replace(node, draining=node.node_id in drained_nodes) for node in status.nodes)
        reply.nodes.extend(to_message(pb.NodeStatus, node) for node in nodes)
        reply.model_endpoints.extend(_endpoint(endpoint, use.get(endpoint.url)) for endpoint in status.endpoints)
        reply.replicas.extend(
            pb.ReplicaStatus(
                name=name,
                driven=driven[name],
                answering=name == own_name,
                started_at_ms=int(replicas[name].started_at * 1000) if name in replicas else 0,
                draining=name in drained,
                version=replicas[name].version if name in replicas else "",
            )
            for name in names
        )
        reply.storage.extend(
            to_message(pb.StorageStatus, usage)
            for usage in (*status.storage, *(replace(usage, name=f"tenant {usage.name}") for usage in status.tenants))
        )

    async def drain(self, request: pb.DrainRequest) -> pb.DrainResponse:
        """Drain what the request names, or undo that; answers what it waits for. Raises FleetError naming the field."""
        if principal().tenant != DEFAULT_TENANT:
            raise PermissionDenied("only admins of the tenant 'default' run the fleet", field="authorization")
        target = from_enum(DrainTarget, pb.DrainTarget, request.target)
        if target is None:
            raise InvalidRequest("name what is drained", field="target", hint="an orchestrator, a host or a node")
        if request.within_seconds < 0:
            raise InvalidRequest("it is negative", field="within_seconds", hint="0: as long as it takes")
        status = await self.view.status()
        hosts = {f"{replica.name}/{host.host_id}": host for replica in status.replicas for host in replica.hosts}
        known = {
            DrainTarget.ORCHESTRATOR: {name: name for name in {*self.executions.load().replicas, self.view.me}},
            DrainTarget.HOST: {name: name.partition("/")[2] for name, host in hosts.items() if host.slots},
            DrainTarget.NODE: {node.node_id: node.name for node in status.nodes if node.alive and node.node_id},
        }[target]
        draining = {draining_name.replace(".", "/") for draining_name in self.drains.names(target)}
        name = _full_name(request.name, {**dict.fromkeys(draining, ""), **known}, target)
        key = name.replace("/", ".")
        if request.undo:
            await self.drains.undo(target, key)
            return pb.DrainResponse(name=name)
        await self.drains.begin(target, key, by=principal().name, within=float(request.within_seconds))
        if target is DrainTarget.ORCHESTRATOR:
            waits_for = self._driven_by(name)
        else:
            waits_for = [
                f"host {host_name}: {counted(host.running, 'call')}"
                for host_name, host in hosts.items()
                if host_name == name or (host.report is not None and host.report.node.node_id == name)
            ]
        return pb.DrainResponse(name=name, draining=True, waits_for=waits_for)

    def _driven_by(self, name: str) -> list[str]:
        """The executions that an orchestrator drives; empty once it has returned its lease, which it does last."""
        if name not in self.executions.load().replicas:
            return []
        states = self.executions.projection.unfinished()
        driven = [
            f"execution {state.execution_id}" for state in states if state.owner == name and not state.status.terminal
        ]
        return driven[:_MOST_NAMED] or ["the end of its lease"]


def _full_name(name: str, known: Mapping[str, str], target: DrainTarget) -> str:
    """The name that is meant, by itself, its other name or a prefix. Raises NotFound, InvalidRequest."""
    candidates = [key for key, other in known.items() if name in (key, other)]
    candidates = candidates or [key for key in known if name and key.startswith(name)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise InvalidRequest(f"several are meant: {', '.join(sorted(candidates)[:5])}", field="name")
    raise NotFound(f"no {target} has the name {name[:64]!r}", field="name", hint="`fleet status` shows what there is")


def shown_to(who: Principal, component: Component) -> Component:
    """The component without its message and latency for non-admins: those may tell of other tenants' work."""
    return component if who.may(AccessRole.ADMIN) else replace(component, message="", latency_ms=0.0)


async def active_councils(councils: CouncilCalls) -> int:
    """How many councils have an agent at work; 0 if unknown, since a status must not fail for that."""
    try:
        async with asyncio.timeout(_COUNCIL_SECONDS):
            return (await councils.counts()).active
    except (FleetError, TimeoutError):
        return 0


def _endpoint(endpoint: EndpointStatus, use: EndpointUse | None) -> pb.ModelEndpointStatus:
    fault = endpoint.message or (use.last_fault if use and endpoint.state is not ComponentState.UP else "")
    return to_message(
        pb.ModelEndpointStatus,
        endpoint,
        message=fault[:MAX_MESSAGE_CHARS],
        in_flight=use.in_flight if use else 0,
        sessions=use.sessions if use else 0,
    )


def _queue(unfinished: Sequence[ExecutionState], *, most: int) -> pb.QueueStatus:
    active = [state for state in unfinished if not state.status.terminal]
    waiting = [state for state in active if not state.owner]
    oldest = min((milliseconds(state.started_at) for state in waiting), default=0)
    return pb.QueueStatus(
        waiting=len(waiting),
        waiting_by_priority=Counter(state.task.priority for state in waiting),
        oldest_wait_ms=max(0, int(time.time() * 1000) - oldest) if oldest else 0,
        max_waiting=most,
        driven=len(active) - len(waiting),
        awaiting_approval=sum(state.status is ExecutionStatus.AWAITING_APPROVAL for state in active),
    )
