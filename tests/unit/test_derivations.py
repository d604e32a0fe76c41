"""Plans split on request, and subtasks on the wire: the planner is the real one, its model is scripted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator.requests import subtask_results
from swe_ai_fleet.agents.deriving import DeriveRun
from swe_ai_fleet.agents.equipment import Equipment
from swe_ai_fleet.agents.spec import RunServices
from swe_ai_fleet.domain.assignment import DeriveAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest, ModelUnavailable, ResourceExhausted
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ModelRequest
from swe_ai_fleet.domain.subtask import SKIPPED, Derivation, Subtask, SubtaskOutcome
from swe_ai_fleet.domain.task import RepoRef, Role
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.derivations import MAX_AT_ONCE, Derivations, Plan
from swe_ai_fleet.watching.progress import split_percent, split_step
from tests.sampling import sample
from tests.scripted_fleet import ScriptedFleet, ScriptedModel
from tests.scripted_workspaces import ScriptedWorkspaces
from tests.tables import table

PLAN = Plan(description="Build it", plan_id="p-1", repo=RepoRef(location="/srv/app", ref="main"))
ANSWER = {
    "subtasks": [
        {"id": "Parser", "description": "Parse", "role": "DEV", "paths": ["src/parser/"]},
        {"id": "tests", "description": "Test", "role": "QA", "depends_on": ["Parser"], "priority": 3},
    ]
}


@dataclass(kw_only=True)
class Answering(ScriptedModel):
    """Says one thing, as soon as it may."""

    text: str = json.dumps(ANSWER)
    asked: int = 0
    gate: asyncio.Event | None = None
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.asked += 1
        self.heard.set()
        if self.gate is not None:
            await self.gate.wait()
        await self.ping()
        message = AssistantMessage(content=self.text)
        return ModelReply(message=message, finish_reason="stop", usage=Usage(model_calls=1))


@dataclass(kw_only=True)
class PlannersFleet(ScriptedFleet):
    """A fleet with a real planner."""

    model: Answering = field(default_factory=Answering)

    async def _derive(self, assignment: DeriveAssignment) -> Derivation:
        self.derived.append(assignment)
        services = RunServices(equipment=Equipment(models={"": self.model}), log=self.storage, blobs=self.storage)
        return await DeriveRun(services=services).run(assignment, None)


@dataclass
class World:
    fleet: PlannersFleet = field(default_factory=lambda: PlannersFleet(storage=MemoryLog()))
    workspaces: ScriptedWorkspaces = field(default_factory=ScriptedWorkspaces)

    def replica(self) -> Derivations:
        return Derivations(fleet=self.fleet, log=self.fleet.storage, workspaces=self.workspaces)


async def test_the_same_plan_is_split_once_on_whichever_replica():
    world = World()
    async with world.replica() as one, world.replica() as other:
        first = await one.derive(PLAN)
        assert await one.derive(PLAN) == await other.derive(PLAN) == first
        assert world.fleet.model.asked == 1
        assert [subtask.subtask_id for subtask in first.subtasks] == ["parser", "tests"]
        again = await one.derive(replace(PLAN, description="Build something else"))
        moved = await one.derive(replace(PLAN, repo=RepoRef(location="/srv/app", ref="next")))
    assert len({first.derivation_id, again.derivation_id, moved.derivation_id}) == world.fleet.model.asked == 3
    assert world.workspaces.released == [one.execution_id for one in world.fleet.derived]


async def test_a_plan_that_cannot_be_split_names_the_field():
    world = World()
    async with world.replica() as replica:
        for field, value in (("description", " "), ("strategy", "clever"), ("plan_id", "x" * 300)):
            with pytest.raises(InvalidRequest) as caught:
                await replica.derive(replace(PLAN, **{field: value}))
            assert caught.value.field.removeprefix("task_") == field
    assert world.fleet.derived == []


async def test_two_who_ask_at_once_share_a_planner_and_one_may_leave():
    world = World()
    world.fleet.model.gate = asyncio.Event()
    async with asyncio.timeout(10), world.replica() as replica:
        leaving, staying = (asyncio.create_task(replica.derive(PLAN)) for _ in range(2))
        await world.fleet.model.heard.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        world.fleet.model.gate.set()
        assert len((await staying).subtasks) == 2
        assert (leaving.cancelled(), world.fleet.model.asked) == (True, 1)
        # What failed can be asked for again.
        world.fleet.model.fault = ModelUnavailable("no answer")
        other = replace(PLAN, description="Build another")
        with pytest.raises(ModelUnavailable):
            await replica.derive(other)
        world.fleet.model.fault = None
        assert len((await replica.derive(other)).subtasks) == 2


async def test_plans_of_one_tenant_leave_room_for_anothers():
    world = World()
    world.fleet.model.gate = asyncio.Event()
    async with asyncio.timeout(10), world.replica() as replica:
        plans = [
            replace(PLAN, tenant="noisy", repo=None, description=f"Part {number}") for number in range(MAX_AT_ONCE)
        ]
        noisy = [asyncio.create_task(replica.derive(plan)) for plan in plans]
        await world.fleet.model.heard.wait()
        with pytest.raises(ResourceExhausted):
            await replica.derive(replace(PLAN, tenant="noisy"))
        quiet = asyncio.create_task(replica.derive(replace(PLAN, tenant="quiet")))
        world.fleet.model.gate.set()
        assert len((await quiet).subtasks) == 2
        assert len(await asyncio.gather(*noisy)) == MAX_AT_ONCE


SUBTASKS = (
    Subtask(subtask_id="a", description="x" * 3_000, allowed_paths=("src/**",)),
    Subtask(subtask_id="b", description="Do b", dependencies=("a",), role=Role.QA, priority=4),
)


@table(
    ("executions", "outcomes", "statuses"),
    [
        ({}, {}, ["PENDING", "PENDING"]),
        ({"a": "e-a"}, {}, ["IN_PROGRESS", "PENDING"]),
        (
            {"a": "e-a"},
            {"a": {"status": "no_winner", "error": "e" * 900}, "b": {"status": SKIPPED}},
            ["NO_WINNER", "CANCELLED"],
        ),
        ({"a": "e-a"}, {"a": {"status": "completed", "error": "merge conflict"}}, ["FAILED", "PENDING"]),
        ({"a": "e-a"}, {"a": {"status": "completed", "commit_sha": "c" * 40}}, ["COMPLETED", "PENDING"]),
    ],
)
def test_subtasks_are_told_as_they_stand(executions, outcomes, statuses):
    state = replace(
        sample(ExecutionState),
        derivation=Derivation(derivation_id="x", subtasks=SUBTASKS),
        subtask_executions=executions,
        subtask_outcomes={name: SubtaskOutcome(subtask_id=name, **given) for name, given in outcomes.items()},
    )
    state = replace(state, task=replace(state.task, task_id="build"))
    told = subtask_results(state)
    assert [pb.DeliberationStatus.Name(one.status).removeprefix("DELIBERATION_STATUS_") for one in told] == statuses
    assert [one.task.task_id for one in told] == ["build.a", "build.b"]
    assert (list(told[1].task.dependencies), told[0].execution_id) == (["build.a"], executions.get("a", ""))
    assert max(len(told[0].error_message), len(told[0].task.description)) <= 2_000
    left = 2 - len(outcomes)
    assert split_step(state) == (f"solving {left} of 2 subtasks" if left else "checking the result")
    assert split_percent(state, most=95) == 95 - 45 * left
    early = replace(state, derivation=None)
    assert (subtask_results(early), split_step(early), split_percent(early, most=95)) == ([], "splitting", 0)
