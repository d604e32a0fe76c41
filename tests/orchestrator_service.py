"""The orchestrator's service on a real server and real sockets, with scripted agents and repositories behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.grpc_server import serve_grpc, service_of
from services.orchestrator.fleet_status import CouncilCalls, FleetStatuses
from services.orchestrator.metrics import Metrics
from services.orchestrator.servicer import OrchestratorServicer
from services.orchestrator.uploads import Uploads
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.fleet_status import Component
from swe_ai_fleet.domain.message import TextDelta
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.council_store import CouncilStore
from swe_ai_fleet.orchestrator.derivations import Derivations, PlanningEvents
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.meter import Meter
from swe_ai_fleet.orchestrator.quotas import Quotas
from swe_ai_fleet.runtime.replicas import Drains
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.scripted_fleet import ScriptedFleet, ScriptedModel, execution_deps
from tests.scripted_workspaces import ScriptedWorkspaces

SECONDS = 20

REPO = pb.RepoRef(path="/srv/app", ref="main")


def servicer_of(
    executions: Executions,
    log: MemoryLog | JetStream,
    *,
    workspaces: ScriptedWorkspaces | None = None,
    **given: Any,
) -> OrchestratorServicer:
    """The servicer over executions; what is not given is real, and empty."""
    workspaces = workspaces or ScriptedWorkspaces()
    view = given.pop("view", cast("Any", SimpleNamespace(status=_no_fleet, me="test")))
    councils = given.pop("councils", None) or CouncilCalls(
        store=CouncilStore(MemoryKeyValue()), states=executions.projection.unfinished, models={}
    )
    derivations = Derivations(fleet=executions.fleet, log=log, workspaces=workspaces)
    rooms: dict[str, Any] = {
        "watch_live": _silence,
        "components": _no_components,
        "councils": councils,
        "derivations": derivations,
        "planning": PlanningEvents(executions=executions, derivations=derivations, store=MemoryKeyValue()),
        "metrics": Metrics(meter=Meter(lambda start: log.everything(from_sequence=start)), councils=councils.counts),
        "fleet": FleetStatuses(executions=executions, view=view, drains=Drains(MemoryKeyValue())),
        "uploads": Uploads(workspaces=workspaces, blobs=log, max_bytes=1_000_000),
        "erasures": None,
        "contexts": None,
        "audit_keys": SimpleNamespace(keys={}),
    }
    return OrchestratorServicer(executions=executions, blobs=log, log=log, **(rooms | given))


async def _silence(tenant: str, execution_id: str) -> AsyncGenerator[TextDelta]:
    await asyncio.Event().wait()
    yield TextDelta(agent_id="", text="")


async def _no_components() -> Sequence[Component]:
    return ()


async def _no_fleet() -> Any:
    raise AssertionError("nobody asks for the fleet here")


@dataclass
class Service:
    """A running service, and the doubles behind it."""

    log: MemoryLog | JetStream = field(default_factory=MemoryLog)
    workspaces: ScriptedWorkspaces = field(default_factory=ScriptedWorkspaces)
    model: ScriptedModel = field(default_factory=ScriptedModel)
    components: list[Component] = field(default_factory=list)
    ready: bool = True
    councils: CouncilStore | None = None
    quotas: Quotas = field(default_factory=Quotas)
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    address: str = ""
    fleet: ScriptedFleet = field(init=False)
    channel: grpc.aio.Channel = field(init=False)
    executions: Executions = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = ScriptedFleet(storage=self.log)

    @property
    def stub(self) -> OrchestratorServiceStub:
        return OrchestratorServiceStub(self.channel)

    async def is_ready(self) -> bool:
        return self.ready

    async def measure(self) -> list[Component]:
        return self.components

    @asynccontextmanager
    async def running(self, token: str | None = None) -> AsyncIterator[Service]:
        deps = execution_deps(self.log, fleet=self.fleet, workspaces=self.workspaces, model=self.model)
        stores = {} if self.councils is None else {"councils": self.councils}
        running = Executions(deps, priced=True, quotas=self.quotas, **stores)
        async with asyncio.timeout(SECONDS), running as self.executions:
            given: dict[str, Any] = {}
            if self.councils is not None:
                states = self.executions.projection.unfinished
                given["councils"] = CouncilCalls(store=self.councils, states=states, models=self.models)
            servicer = servicer_of(
                self.executions, self.log, workspaces=self.workspaces, components=self.measure, **given
            )
            seconds = {"readiness_seconds": 0.02, "grace_seconds": 0.1}
            serving = serve_grpc([service_of(servicer)], "127.0.0.1:0", token, self.is_ready, **seconds)
            async with serving as self.address, grpc.aio.insecure_channel(self.address) as self.channel:
                yield self


def deliberation(task_id: str = "task-1", kind: Any = pb.DeliberateRequest, **fields: object) -> Any:
    return kind(**{"task_id": task_id, "task_description": "Add a greeting", "repo": REPO} | fields)


orchestration = partial(deliberation, kind=pb.OrchestrateRequest)


async def refusal(call) -> tuple[grpc.StatusCode, str, dict[str, Message]]:
    """What a call is refused with: the code, the message, the details by their type."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        if hasattr(call, "__await__"):
            await call
        else:
            async for _ in call:
                pass
    status = rpc_status.from_call(refused.value)
    details: dict[str, Message] = {}
    for packed in status.details if status else ():
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            if packed.Is(kind.DESCRIPTOR):
                details[kind.__name__] = kind()
                packed.Unpack(details[kind.__name__])
    return refused.value.code(), refused.value.details() or "", details


def field_named(details: dict[str, Message]) -> str:
    [violation] = details["BadRequest"].field_violations
    assert violation.description
    return violation.field
