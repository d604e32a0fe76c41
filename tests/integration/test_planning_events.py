"""Planning events: taken once, answered alike however often they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.grpc_server import serve_grpc, service_of
from swe_ai_fleet.domain.assignment import DeriveAssignment
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.subtask import Derivation, Subtask
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.derivations import (
    Derivations,
    PlanningEvents,
)
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.orchestrator_service import field_named, refusal, servicer_of
from tests.scripted_fleet import ScriptedFleet, execution_deps
from tests.scripted_workspaces import ScriptedWorkspaces

SECONDS = 10
SUBTASKS = (
    Subtask(subtask_id="write", description="Write the greeting", priority=2, allowed_paths=("app/*",)),
    Subtask(subtask_id="test", description="Test the greeting", role=Role.QA, dependencies=("write",)),
)
SPLIT = Derivation(derivation_id="d-1", subtasks=SUBTASKS)


class Planner(ScriptedFleet):
    """A fleet whose planner splits tasks in two."""

    def __init__(self, storage: MemoryLog) -> None:
        super().__init__(storage=storage)
        self.asked: list[DeriveAssignment] = []
        self.fault: Exception | None = None

    async def _derive(self, assignment: DeriveAssignment) -> Derivation:
        self.asked.append(assignment)
        if self.fault is not None:
            raise self.fault
        return replace(SPLIT, derivation_id=f"d-{len(self.asked)}")


@asynccontextmanager
async def served(planner: Planner, store: MemoryKeyValue) -> AsyncIterator[Any]:
    """The RPC that planning events come in by."""
    log, workspaces = planner.storage, ScriptedWorkspaces()
    async with (
        asyncio.timeout(SECONDS),
        Executions(execution_deps(log, fleet=planner, workspaces=workspaces)) as executions,
        Derivations(fleet=planner, log=log, workspaces=workspaces) as derivations,
    ):
        planning = PlanningEvents(executions=executions, derivations=derivations, store=store)
        service = service_of(servicer_of(executions, log, planning=planning))
        async with (
            serve_grpc([service], "127.0.0.1:0", None, _ready, grace_seconds=0.1) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            yield OrchestratorServiceStub(channel).ProcessPlanningEvent


REQUEST: dict[str, Any] = {
    "event_id": "e-1",
    "event_type": "story.approved",
    "task_description": "Greet",
    "plan_id": "plan-7",
    "repo": pb.RepoRef(path="/srv/app"),
}


async def test_over_the_wire_subtasks_are_told_with_what_they_need_and_faults_name_their_field() -> None:
    planner, store = Planner(MemoryLog()), MemoryKeyValue()
    async with served(planner, store) as process:
        for change, field in (
            ({"dispatch": True, "repo": None}, "repo"),
            ({"roles": ["DEV", ""]}, "roles[1]"),
            ({"payload": {"nan": float("nan")}}, "payload"),
        ):
            code, said, details = await refusal(process(pb.ProcessPlanningEventRequest(**(REQUEST | change))))
            assert (code, field_named(details)) == (grpc.StatusCode.INVALID_ARGUMENT, field), said
        assert not await store.entries()
        planner.fault = InvalidRequest("no sound split was found")
        code, said, _ = await refusal(process(pb.ProcessPlanningEventRequest(**REQUEST)))
        assert (code, "no sound split" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        planner.fault = None  # the event was not taken: its id is free
        request = pb.ProcessPlanningEventRequest(**REQUEST, roles=["dev", "DEVELOPER", "qa"], occurred_at_ms=1)
        request.payload.update({"labels": ["a"], "points": 2})
        told = await process(request)
        request.occurred_at_ms = 2
        assert await process(request) == told
        request.payload["points"] = 3
        assert (await refusal(process(request)))[0] is grpc.StatusCode.ALREADY_EXISTS
        dispatched = await process(pb.ProcessPlanningEventRequest(**(REQUEST | {"event_id": "e-2"}), dispatch=True))
    first, second = told.tasks
    assert (told.accepted, told.derivation_id) == (True, "d-2")
    assert [first.task_id, second.task_id, *second.dependencies] == ["d-2.write", "d-2.test", "d-2.write"]
    assert (second.role, first.priority, first.plan_id) == ("QA", 2, "plan-7")
    assert list(first.constraints.allowed_paths) == ["app/*"]
    assert [task.task_id for task in dispatched.tasks] == ["event-e-2.write", "event-e-2.test"]
    assert list(dispatched.tasks[1].dependencies) == ["event-e-2.write"]


async def _ready() -> bool:
    return True
