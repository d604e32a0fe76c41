"""Subtasks as a graph, as tasks of their own, and plans that are split on request."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.deriving import DeriveRun
from swe_ai_fleet.agents.run_deps import RunDeps, RunRecorder
from swe_ai_fleet.domain.assignment import DeriveAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ModelRequest
from swe_ai_fleet.domain.subtask import (
    MAX_SUBTASKS,
    SKIPPED,
    Derivation,
    Subtask,
    SubtaskOutcome,
    check_graph,
    doomed,
    graph_problems,
    in_order,
    needs_all_others,
    ready,
)
from swe_ai_fleet.domain.task import RepoRef, Role
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.derivations import DerivationRequest, Derivations
from tests.scripted_fleet import ScriptedFleet, ScriptedModel
from tests.scripted_workspaces import ScriptedWorkspaces
from tests.tables import table


def a_subtask(name: str, *dependencies: str, **more: object) -> Subtask:
    return replace(Subtask(subtask_id=name, description=f"Do {name}", dependencies=dependencies), **more)


def merged(name: str) -> SubtaskOutcome:
    return SubtaskOutcome(subtask_id=name, status="completed", commit_sha="c" * 40)


def failed(name: str) -> SubtaskOutcome:
    return SubtaskOutcome(subtask_id=name, status="no_winner")


DIAMOND = (a_subtask("a"), a_subtask("b", "a"), a_subtask("c", "a"), a_subtask("d", "b", "c"))


@table(
    ("subtasks", "roles", "reason"),
    [
        ((), (), "list of subtasks is empty"),
        ((a_subtask("a"), a_subtask("a")), (), "two subtasks are called 'a'"),
        ((a_subtask("a", "b"),), (), "'a' depends on 'b', which is not a subtask"),
        ((a_subtask("a", "a"),), (), "cycle: 'a' -> 'a'"),
        ((a_subtask("x"), a_subtask("a", "x", "c"), a_subtask("b", "a"), a_subtask("c", "b")), (), "'a' -> 'c' -> 'b'"),
        ((a_subtask("a", description=" \n"),), (), "'a' has no description"),
        ((a_subtask("a", role=Role.QA),), (Role.DEV,), "'a' has the role QA; allowed: DEV"),
        (tuple(a_subtask(f"s{n}") for n in range(MAX_SUBTASKS + 1)), (), "there are 33 subtasks"),
        ((a_subtask("../a"),), (), "not a valid subtask id"),
    ],
)
def test_a_graph_that_cannot_be_carried_out_says_why(subtasks, roles, reason):
    with pytest.raises(InvalidRequest) as caught:
        check_graph(subtasks, roles)
    assert reason in caught.value.message
    assert caught.value.field == "subtasks"


def test_a_diamond_is_carried_out_from_its_root_and_what_is_urgent_never_before_what_it_needs():
    subtasks = (a_subtask("slow"), a_subtask("first", "base", priority=9), a_subtask("base", priority=1))
    assert [one.subtask_id for one in check_graph(subtasks)] == ["base", "first", "slow"]
    assert [one.subtask_id for one in ready(DIAMOND, {})] == ["a"]
    assert ready(DIAMOND, {}, {"a"}) == ()
    outcomes = {"a": merged("a")}
    assert [one.subtask_id for one in ready(DIAMOND, outcomes)] == ["b", "c"]
    assert doomed(DIAMOND, outcomes) == ()
    outcomes |= {"b": merged("b"), "c": failed("c")}
    assert ready(DIAMOND, outcomes) == ()
    assert [(one.subtask_id, causes) for one, causes in doomed(DIAMOND, outcomes)] == [("d", ("c",))]
    # Only the last of all is the whole.
    assert [one.subtask_id for one in DIAMOND if needs_all_others(one, DIAMOND)] == ["d"]
    assert needs_all_others(DIAMOND[0], DIAMOND[:1])
    assert not any(needs_all_others(one, (*DIAMOND, a_subtask("alone"))) for one in DIAMOND)


graphs = st.lists(st.tuples(st.sets(st.integers(0, 11), max_size=4), st.integers(0, 3)), min_size=1, max_size=12).map(
    lambda shape: tuple(
        a_subtask(f"s{n}", *(f"s{m}" for m in sorted(needs)), priority=priority)
        for n, (needs, priority) in enumerate(shape)
    )
)


@given(graphs)
def test_a_graph_is_ordered_or_its_cycle_named(subtasks):
    problems, ordered = graph_problems(subtasks), in_order(subtasks)
    place = {one.subtask_id: number for number, one in enumerate(ordered)}
    assert all(place[name] < place[one.subtask_id] for one in ordered for name in one.dependencies)
    assert (len(ordered) == len(subtasks)) == (not problems)
    for problem in problems:
        if "cycle" in problem:
            cycle = [name.strip("' ") for name in problem.split(": ")[1].split("->")]
            needs = {one.subtask_id: one.dependencies for one in subtasks}
            assert cycle[0] == cycle[-1]
            assert all(later in needs[earlier] for earlier, later in itertools.pairwise(cycle))


@given(graphs, st.data())
def test_carrying_out_what_is_ready_ends_every_sound_graph(subtasks, data):
    if graph_problems(subtasks):
        subtasks = tuple(replace(one, dependencies=()) for one in subtasks)
    outcomes: dict[str, SubtaskOutcome] = {}
    while len(outcomes) < len(subtasks):
        for one, causes in doomed(subtasks, outcomes):
            assert causes
            assert all(not outcomes[name].merged for name in causes)
            outcomes[one.subtask_id] = SubtaskOutcome(subtask_id=one.subtask_id, status=SKIPPED)
        free = ready(subtasks, outcomes)
        assert free or len(outcomes) == len(subtasks)
        assert [one.priority for one in free] == sorted((one.priority for one in free), reverse=True)
        for one in free[:1]:
            outcome = merged(one.subtask_id) if data.draw(st.booleans()) else failed(one.subtask_id)
            outcomes[one.subtask_id] = outcome
    assert doomed(subtasks, outcomes) == ()


PLAN = DerivationRequest(description="Build it", plan_id="p-1", repo=RepoRef(location="/srv/app", ref="main"))
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

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.asked += 1
        await self.ping()
        message = AssistantMessage(content=self.text)
        return ModelReply(message=message, finish_reason="stop", usage=Usage(model_calls=1))


@dataclass(kw_only=True)
class PlannersFleet(ScriptedFleet):
    model: Answering = field(default_factory=Answering)

    async def _derive(self, assignment: DeriveAssignment) -> Derivation:
        self.derived.append(assignment)
        services = RunRecorder(deps=RunDeps(models={"": self.model}), log=self.storage, blobs=self.storage)
        return await DeriveRun(recorder=services).run(assignment, None)


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
