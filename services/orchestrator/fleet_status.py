"""The fleet as it is now, as clients get it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import principal, tenant
from services.orchestrator.councils import Councils
from swe_ai_fleet.contract import to_message
from swe_ai_fleet.domain.access import AccessRole, Principal
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.fleet_status import (
    Component,
    ComponentState,
    EndpointStatus,
    EndpointUse,
    FleetStatus,
    HostStatus,
    ReplicaReport,
)
from swe_ai_fleet.domain.moment import milliseconds
from swe_ai_fleet.orchestrator.executions import Executions

MAX_MESSAGE_CHARS = 500
_COUNCIL_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class FleetStatuses:
    """Fills the part of a status that tells of the fleet.

    Attributes:
        executions: Knows what is driven, and by whom, and what waits.
        measure: Looks at everything else.
        use: By the URL of a model server, what the fleet has under way there.
        me: The orchestrator that answers.
    """

    executions: Executions
    measure: Callable[[], Awaitable[FleetStatus]]
    use: Callable[[FleetStatus], dict[str, EndpointUse]]
    me: str

    async def fill(self, reply: pb.GetStatusResponse) -> None:
        """Add the fleet as it is now to a status; hosts, machines and servers are shown to admins, who run it."""
        found = await self.measure()
        told = {replica.name: replica for replica in found.replicas}
        load = self.executions.load()
        unfinished = self.executions.projection.unfinished(tenant())
        driven = Counter(state.owner for state in unfinished if state.owner and not state.status.terminal)
        names = sorted({*load.replicas, self.me})
        use = self.use(found)
        reply.queue.CopyFrom(_queue(unfinished, most=load.room.queued))
        reply.measured_at_ms = _milliseconds(found.measured_at)
        if not principal().may(AccessRole.ADMIN):
            return
        reply.hosts.extend(_host(host, replica) for replica in found.replicas for host in replica.hosts)
        reply.nodes.extend(to_message(pb.NodeStatus, node) for node in found.nodes)
        reply.model_endpoints.extend(_endpoint(endpoint, use.get(endpoint.url)) for endpoint in found.endpoints)
        reply.replicas.extend(
            pb.ReplicaStatus(
                name=name,
                driven=driven[name],
                answering=name == self.me,
                started_at_ms=_milliseconds(told[name].started_at) if name in told else 0,
            )
            for name in names
        )
        reply.storage.extend(
            to_message(pb.StorageStatus, one)
            for one in (*found.storage, *(replace(one, name=f"tenant {one.name}") for one in found.tenants))
        )


def seen_by(who: Principal, component: Component) -> Component:
    """A component as somebody may see it: what it says of the fleet, other tenants' work included, is for admins."""
    return component if who.may(AccessRole.ADMIN) else replace(component, message="", latency_ms=0.0)


async def active_councils(councils: Councils) -> int:
    """How many councils have an agent at work; 0 where that can't be known now, since a status is told anyway."""
    try:
        async with asyncio.timeout(_COUNCIL_SECONDS):
            return (await councils.counts()).active
    except (FleetError, TimeoutError):
        return 0


def _host(host: HostStatus, replica: ReplicaReport) -> pb.HostStatus:
    return to_message(
        pb.HostStatus,
        host,
        node_id=host.report.node.node_id if host.report else "",
        replica=replica.name,
        started_at_ms=_milliseconds(host.started_at),
        memory_bytes=host.report.memory if host.report else 0,
    )


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
    going_on = [state for state in unfinished if not state.status.terminal]
    waiting = [state for state in going_on if not state.owner]
    oldest = min((milliseconds(state.started_at) for state in waiting), default=0)
    return pb.QueueStatus(
        waiting=len(waiting),
        waiting_by_priority=Counter(state.task.priority for state in waiting),
        oldest_wait_ms=max(0, int(time.time() * 1000) - oldest) if oldest else 0,
        max_waiting=most,
        driven=len(going_on) - len(waiting),
        awaiting_approval=sum(state.status is ExecutionStatus.AWAITING_APPROVAL for state in going_on),
    )


def _milliseconds(at: float) -> int:
    return int(at * 1000)
