"""Councils on the wire: created, listed, deleted; agents that join and leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import tenant
from swe_ai_fleet.contract import from_message, to_message
from swe_ai_fleet.domain.council import Council, CouncilMember
from swe_ai_fleet.domain.errors import InvalidRequest, fields_named
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.orchestrator.council_store import CouncilStore
from swe_ai_fleet.orchestrator.councils import at_work, council_name

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
class Councils:
    """Carries out the five calls about councils.

    Attributes:
        store: Where councils are kept.
        states: The executions of a tenant that go on, as far as they are known here.
        models: The model of each profile; the empty name is the default's.
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
        """How many there are, with an agent at work, and of how many agents. Raises Unavailable."""
        councils, states = await self.store.list(tenant()), self.states(tenant())
        at_them = [(council, at_work(states, council.role)) for council in councils]
        return pb.CouncilMetrics(
            total=len(councils),
            active=sum(any(working.get(each.agent_id) for each in council.members) for council, working in at_them),
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
            agents=[_agent(each, working.get(each.agent_id, 0)) for each in council.members] if agents else [],
            status="busy" if busy else "active" if council.members else "empty",
            model=", ".join(filter(None, (self.models.get(name, "") for name in names))),
        )


def _agent(member: CouncilMember, running: int) -> pb.AgentInfo:
    return to_message(
        pb.AgentInfo, member, capabilities=to_message(pb.AgentCapabilities, member), running_tasks=running
    )


def _role(text: str, *, field: str = "role") -> Role:
    """A role that must be named: nothing is created or deleted by leaving a word out. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest("no role given", field=field, hint=f"one of {', '.join(Role)}")
    with fields_named(lambda _: field):
        return Role.parse(text)
