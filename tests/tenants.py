"""Two tenants with their people, and every service of a fleet for them in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from fleet.context.v1.context_pb2_grpc import ContextServiceStub
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from fleet.notification.v1.notification_pb2_grpc import NotificationServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from fleet.workflow.v1.workflow_pb2_grpc import WorkflowServiceStub
from services.access.store import AccessStore
from services.grpc_server import serve_grpc, service_of
from services.orchestrator.fleet_status import CouncilCalls
from services.orchestrator.main import PLANNING_BUCKET, open_services
from services.orchestrator.metrics import Metrics
from services.orchestrator.uploads import Uploads
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.council import EndpointRules
from swe_ai_fleet.domain.fleet_status import Component, ComponentState, FleetStatus, ReplicaReport
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.orchestrator.council_store import CouncilStore
from swe_ai_fleet.orchestrator.councils import CouncilRules
from swe_ai_fleet.orchestrator.derivations import Derivations, PlanningEvents
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.meter import Meter
from swe_ai_fleet.orchestrator.quotas import Quotas
from swe_ai_fleet.runtime.erasure import Erasures
from swe_ai_fleet.runtime.factories import connect_log, workspace_provider
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Script, ScriptedModelServer
from tests.access_world import token_entry
from tests.chat_script import answered, said
from tests.memory_parts import context_service
from tests.orchestrator_service import servicer_of
from tests.plan_script import PLAN_CONVERSATIONS
from tests.scripted_fleet import ScriptedFleet, ScriptedRun, execution_deps

NORTH, SOUTH = "north", "south"

PEOPLE = {"ann": "submitter", "bob": 'submitter", "approver', "eve": "viewer", "zoe": "admin"}

MAX_STORED_BYTES = 300_000
"""What may be kept for the southern tenant."""

ASKS = "agent-qa-1"
"""The agent that waits for a person."""


def token_of(tenant: str, name: str) -> str:
    return f"the-token-of-{name}-in-{tenant}"


def access_file(path: Path) -> Path:
    tenants = f"""\
[tenants.default]
[tenants.north]
[tenants.south]
approval = "plan"
agent_endpoints = ["agents.example.org:50060"]
harnesses = ["small"]
[tenants.south.quota]
queued = 50
storage_bytes = {MAX_STORED_BYTES}
"""
    entries = [(tenant, name, role) for tenant in (NORTH, SOUTH) for name, role in PEOPLE.items()]
    tokens = [
        token_entry(f"{name}.{tenant}", token_of(tenant, name), tenant=tenant, role=role)
        for tenant, name, role in [*entries, ("default", "host", "service")]
    ]
    path.write_text("\n".join((tenants, *tokens)))
    return path


@dataclass(kw_only=True)
class World:
    """A fleet of scripted agents that two tenants use, and its services."""

    log: JetStream
    fleet: ScriptedFleet
    executions: Executions
    nats: EmbeddedNats
    planning: PlanningEvents
    erasures: Erasures
    home: Path
    context: Any
    """The context service, and its client below; None without the extension."""
    client: Any
    stubs: dict[type, Any]

    @property
    def running(self) -> Any:
        """The context service, for tests that are about it."""
        return self.context or pytest.skip("the extension knowledge is not there")

    def by(self, tenant: str, name: str) -> Caller:
        return Caller(world=self, metadata=(("authorization", f"Bearer {token_of(tenant, name)}"),))


_SERVICES: dict[str, type] = {
    "orchestrator": OrchestratorServiceStub,
    "workflow": WorkflowServiceStub,
    "conversation": ConversationServiceStub,
    "planning": PlanningServiceStub,
    "notification": NotificationServiceStub,
    "context": ContextServiceStub,
}


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Somebody who calls."""

    world: World
    metadata: tuple[tuple[str, str], ...]

    def on_behalf(self, tenant: str, name: str) -> Caller:
        named = (("fleet-tenant", tenant), ("fleet-caller", name))
        return Caller(world=self.world, metadata=(*self.metadata, *named))

    async def call(self, method: str, request: Any) -> Any:
        return await self._begun(method, request)

    async def stream(self, method: str, request: Any) -> list[Any]:
        return [one async for one in self._begun(method, request)]

    def _begun(self, method: str, request: Any) -> Any:
        package = type(request).DESCRIPTOR.file.package.split(".")[1]
        if package == "context":
            assert self.world.running
        stub = self.world.stubs[_SERVICES[package]]
        return getattr(stub, method)(request, metadata=self.metadata, timeout=30)

    async def submit(self, task_id: str, **fields: Any) -> str:
        usual: dict[str, Any] = {"num_agents": 1, "enable_peer_review": False, "repo": pb.RepoRef(path="/srv/app")}
        request = pb.DeliberateRequest(task_id=task_id, task_description="Add a greeting", **usual | fields)
        return (await self.call("SubmitTask", pb.SubmitTaskRequest(deliberate=request))).execution_id

    async def ended(self, execution: str) -> pb.Execution:
        await self.stream("StreamExecution", pb.StreamExecutionRequest(execution_id=execution))
        return (await self.call("GetExecution", pb.GetExecutionRequest(execution_id=execution))).execution

    async def waits(self, execution: str) -> pb.PendingApproval:
        """What an execution waits for, once it does."""
        while True:
            told = (await self.call("GetExecution", pb.GetExecutionRequest(execution_id=execution))).execution
            if told.pending_approvals:
                return told.pending_approvals[0]
            await asyncio.sleep(0.02)


async def refused(calling: Any) -> tuple[grpc.StatusCode, str]:
    """The code and the words that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await calling
    return caught.value.code(), caught.value.details() or ""


@asynccontextmanager
async def tenants(home: Path, *, webhook_host: str = "127.0.0.1:9") -> AsyncGenerator[World]:
    """One of every service of a fleet in one process, over a NATS of its own; webhooks may go to this host inside."""
    script = Script(conversations=(*said("Who are you?", answered("A fleet.")), *PLAN_CONVERSATIONS))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedNats(home / "nats"))
        model = await stack.enter_async_context(ScriptedModelServer(script))
        store = await AccessStore.open(access_file(home / "access.toml"))
        settings = Settings(
            home=home,
            nats_url=server.address.url,
            nats_token=server.address.token,
            model_url=model.url,
            model="scripted",
            context_listen="127.0.0.1:0",
            embeddings="none",
            webhook_private_hosts=webhook_host,
        )
        log = await stack.enter_async_context(connect_log(settings, name="tenants-test"))
        await log.ensure_streams()
        admitted = {"token": token_of("default", "host"), "authenticator": store, "rules": store.rules}
        running, knowledge = await stack.enter_async_context(context_service(settings, log, **admitted))
        fleet = ScriptedFleet(storage=log, runs={ASKS: ScriptedRun(asks=1)})
        known: dict[str, Any] = {"context": knowledge, "memories": knowledge}
        deps = execution_deps(log, fleet=fleet, workflows=next(iter(load_parts("workflows")), None), **known)
        meter = await stack.enter_async_context(Meter(lambda start: log.everything(from_sequence=start, follow=True)))
        councils = CouncilStore(
            await log.bucket("councils-tenants"),
            rules=CouncilRules(
                endpoints=EndpointRules(patterns=("agents.example.org:50060", "more.example.org:50060")),
                harnesses=("large", "small"),
            ),
            places=lambda tenant: EndpointRules(patterns=store.rules(tenant).agent_endpoints),
        )
        executions = await stack.enter_async_context(
            Executions(deps, councils=councils, quotas=Quotas(rules=store.rules, spent=meter.spent_today))
        )
        derivations = await stack.enter_async_context(
            Derivations(fleet=executions.fleet, log=log, workspaces=deps.workspaces)
        )
        events = PlanningEvents(executions=executions, derivations=derivations, store=await log.bucket(PLANNING_BUCKET))
        workspaces = workspace_provider(settings)
        erasures = Erasures(executions=executions, log=log, nodes=(workspaces,))
        servicer = servicer_of(
            executions,
            log,
            components=measured,
            councils=CouncilCalls(store=councils, states=executions.projection.unfinished),
            metrics=Metrics(meter=meter),
            planning=events,
            uploads=Uploads(workspaces=workspaces, blobs=log, max_bytes=1_000_000),
            view=SimpleNamespace(status=looked_at, me="test"),
            erasures=erasures,
        )

        served = SimpleNamespace(
            settings=settings,
            log=log,
            executions=executions,
            context=knowledge,
            workspaces=workspaces,
        )
        others = await stack.enter_async_context(open_services(cast("Any", served)))
        own = [service_of(servicer), *others]
        address = await stack.enter_async_context(serve_grpc(own, "127.0.0.1:0", store, ready, grace_seconds=0.1))
        first = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        second = await stack.enter_async_context(grpc.aio.insecure_channel(running.address if running else address))
        yield World(
            log=log,
            fleet=fleet,
            executions=executions,
            context=running,
            client=knowledge,
            nats=server,
            planning=events,
            erasures=erasures,
            home=home,
            stubs={kind: kind(second if kind is ContextServiceStub else first) for kind in _SERVICES.values()},
        )


async def measured() -> list[Component]:
    return [Component(name="queue", state=ComponentState.UP, message="7 waiting; orchestrators: secret-host")]


async def looked_at() -> FleetStatus:
    replicas = (ReplicaReport(name="secret-host", started_at=1.0, hosts=()),)
    return FleetStatus(measured_at=1.0, replicas=replicas, nodes=(), endpoints=(), storage=())


async def ready() -> bool:
    return True
