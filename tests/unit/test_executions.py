"""Executions from acceptance to their published result, over the log in memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.candidate import CheckKind, CheckResult, TestSummary
from swe_ai_fleet.domain.errors import (
    AgentLost,
    AlreadyExists,
    FleetError,
    ModelUnavailable,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    Unavailable,
)
from swe_ai_fleet.domain.memory import WorkOutcome
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Delivery, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.execution_context import Workflows
from swe_ai_fleet.orchestrator.executions import Executions, Room
from swe_ai_fleet.orchestrator.projection import over
from tests.scripted_fleet import FAILED, PASSED, ScriptedFleet, ScriptedModel, ScriptedRun, execution_deps
from tests.scripted_workspaces import DELIVERED_COMMIT, ScriptedWorkspaces

SECONDS = 10
SKIPPED = CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=False, skipped_reason="no test command")


def a_task(task_id: str = "task-1", **changes: object) -> Task:
    base = Task(
        task_id=task_id, kind=TaskKind.DELIBERATE, description="Add a greeting", repo=RepoRef(location="/srv/app")
    )
    return replace(base, **changes)


@dataclass
class World:
    """Everything an orchestrator works with, all of it in memory."""

    log: MemoryLog = field(default_factory=MemoryLog)
    workspaces: ScriptedWorkspaces = field(default_factory=ScriptedWorkspaces)
    model: ScriptedModel = field(default_factory=ScriptedModel)
    fleet: ScriptedFleet = field(init=False)
    ended_work: Callable[[str], Sequence[WorkOutcome]] | None = None
    signer: Any = None
    workflows: Workflows | None = None

    def __post_init__(self) -> None:
        self.fleet = ScriptedFleet(storage=self.log)

    @asynccontextmanager
    async def running(self, *, owner: str = "test", **options: object) -> AsyncIterator[Executions]:
        given = {"fleet": self.fleet, "workspaces": self.workspaces, "model": self.model, "workflows": self.workflows}
        judged = {"outcomes": self.ended_work, "signer": self.signer}
        deps = execution_deps(self.log, owner=owner, pauses=(0.0, 0.0), **given, **judged)
        async with asyncio.timeout(SECONDS), Executions(deps, **options) as executions:
            yield executions

    async def run(self, task: Task):
        async with self.running() as executions:
            submission = await executions.submit(task)
            return await executions.wait(task.tenant, submission.execution_id)

    def bodies(self, kind: type) -> list:
        return [event.body for event in self.log.events if isinstance(event.body, kind)]


async def published(executions: Executions, execution_id: str) -> None:
    """Wait until nothing is left to be done for an execution, its result included."""
    while (state := executions.projection.get(DEFAULT_TENANT, execution_id)) is None or not over(state):
        await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


async def test_candidates_are_checked_ranked_the_winner_named_and_the_result_published_once(world: World):
    passed = ScriptedRun(checks=(replace(PASSED, output="x" * 9_000, tests=TestSummary(passed=1)),))
    world.fleet.runs = {
        "agent-dev-1": passed,
        "agent-dev-2": ScriptedRun(checks=(FAILED,)),
        "agent-dev-3": replace(passed, insertions=5),
    }
    async with world.running() as executions:
        name = (await executions.submit(a_task())).execution_id
        state = await executions.wait(DEFAULT_TENANT, name)
        await published(executions, name)
    assert (state.status, state.winner_id) == (ev.ExecutionStatus.COMPLETED, "agent-dev-1")
    assert [one.candidate_id for one in state.ranking] == ["agent-dev-1", "agent-dev-3", "agent-dev-2-r1"]
    assert (state.usage.total_tokens, state.delivered, world.workspaces.deliveries) == (404, None, [])
    [result] = [one for one in world.log.results if not one.agent_id]
    payload = json.loads(result.payload)
    assert (payload["status"], payload["winner"], payload["agent_id"]) == ("completed", "agent-dev-1", "agent-dev-1")
    assert payload["artifacts"]["patch"] == "diff of agent-dev-1\n"
    assert payload["artifacts"]["tests"]["passed"] == 1
    best, _, worst = payload["candidates"]
    assert [(one["name"], one["passed"], len(one["output"]) < 2_100) for one in best["checks"]] == [
        ("tests", True, True)
    ]
    assert (worst["verdict"], worst["checks"][0]["message"]) == ("refuted", "exit code 1")
    assert {one["reviewer_id"] for one in best["critiques"]} == {"agent-dev-2", "agent-dev-3"}
    assert best["patch"]["digest"] == hashlib.sha256(b"diff of agent-dev-1\n").hexdigest()
    told = [{name: one[name] for name in ("operation", "params", "output", "error")} for one in payload["operations"]]
    wrote = {"path": "file-1.py", "lines": 1}
    assert told == [{"operation": "write_file", "params": wrote, "output": "wrote file-1.py", "error": ""}]
    assert {payload["operations"][0][name] for name in ("step", "audit_seq")} == {1, 2}
    assert payload["operations"][0]["call_id"] == payload["audit_trail"][-1]["call_id"] != ""
    assert len(world.bodies(ev.ResultPublished)) == 1
    assert world.workspaces.released == [name]


@pytest.mark.parametrize("fault", [AgentLost("its host died"), Unavailable("no NATS server answers")])
async def test_a_lost_agent_is_begun_again_and_costs_its_own_candidate_only(world: World, fault: FleetError):
    world.fleet.runs = {"agent-dev-1": ScriptedRun(fault=fault), "agent-dev-2": ScriptedRun(lost=2)}
    state = await world.run(a_task())
    assert state.status is ev.ExecutionStatus.COMPLETED
    assert sorted(state.candidates) == ["agent-dev-2", "agent-dev-3"]
    told = sorted((one.lost_agent_id, one.attempt) for one in world.bodies(ev.RunReassigned))
    assert told == [(name, attempt) for name in ("agent-dev-1", "agent-dev-2") for attempt in (2, 3)]
    assert [(lost.lost_agent_id, lost.reason) for lost in world.bodies(ev.RunLost)] == [("agent-dev-1", str(fault))]
    assert (state.agents["agent-dev-1"].status, state.agents["agent-dev-2"].attempt) == ("lost", 3)
    # A run whose process died goes on in another one.
    mine = [one for one in world.fleet.begun if one.agent_id == "agent-dev-2"]
    assert [(one.generation, one.resume) for one in mine] == [(1, False), (2, True), (3, True)]


@pytest.mark.parametrize(
    ("run", "task", "status", "error"),
    [
        (ScriptedRun(fault=AgentLost("its host died")), {}, "failed", "no patch: its host died"),
        (ScriptedRun(checks=(FAILED,)), {"kind": TaskKind.ORCHESTRATE}, "no_winner", "exit code 1"),
        # What stopped the best run is told.
        (
            ScriptedRun(checks=(FAILED,), error="model server answered 500"),
            {"num_agents": 1},
            "no_winner",
            "(model server answered 500): tests failed: exit code 1",
        ),
        # Runs that the clock ended make a time-out.
        (ScriptedRun(stop_reason=StopReason.TIMEOUT, checks=(FAILED,)), {}, "timeout", ""),
        # A fault of ours ends the execution without telling its secrets.
        (ScriptedRun(fault=RuntimeError("password hunter2")), {}, "failed", "RuntimeError"),
    ],
)
async def test_how_an_execution_without_a_winner_ends(
    world: World, run: ScriptedRun, task: dict[str, object], status: str, error: str
):
    world.fleet.default = run
    async with world.running() as executions:
        submission = await executions.submit(a_task(**task))
        await published(executions, submission.execution_id)
        state = await executions.wait(DEFAULT_TENANT, submission.execution_id)
    payload = json.loads(world.log.results[-1].payload)
    # Nobody won: the chain is that of the best, where there is any.
    heads = {one.audit_head for one in state.agents.values()}
    assert payload["audit_head"] in heads or (payload["audit_head"], heads) == ("", set())
    assert (state.status, state.winner_id, world.workspaces.deliveries) == (ev.ExecutionStatus(status), "", [])
    assert error in state.error and "hunter2" not in state.error


async def test_equal_diffs_are_checked_once(world: World):
    world.fleet.default = ScriptedRun(patch=b"the same diff\n")
    state = await world.run(a_task(num_agents=4))
    assert len(world.fleet.checked) == 1
    assert len(world.bodies(ev.ChecksFinished)) == 4
    assert {one.candidate_id for one in world.bodies(ev.ChecksFinished) for one in [one.report]} == set(
        state.candidates
    )
    [only] = state.ranking
    assert len(only.duplicates) == 3


async def test_an_orchestration_delivers_the_winner_on_a_branch(world: World):
    state = await world.run(a_task(kind=TaskKind.ORCHESTRATE))
    assert state.status is ev.ExecutionStatus.COMPLETED
    assert state.delivered is not None
    assert (state.delivered.commit_sha, state.delivered.branch) == (DELIVERED_COMMIT, "fleet/task-1")
    [(execution_id, patch, delivery)] = world.workspaces.deliveries
    assert execution_id == state.execution_id
    assert patch == b"diff of agent-dev-1\n"
    assert f"Fleet-Execution: {execution_id}" in delivery.message
    assert world.fleet.checked[-1].repository.commit == DELIVERED_COMMIT
    # One that git refuses fails the execution.
    world.workspaces.delivery_fault = PreconditionFailed("the branch is checked out")
    refused = await world.run(a_task("task-2", kind=TaskKind.ORCHESTRATE))
    assert (refused.status, refused.error) == (ev.ExecutionStatus.FAILED, "the branch is checked out")


@pytest.mark.parametrize(
    ("delivered", "status"),
    [
        ((PASSED,), ev.ExecutionStatus.COMPLETED),
        ((FAILED,), ev.ExecutionStatus.FAILED),
        ((SKIPPED,), ev.ExecutionStatus.COMPLETED),
        ((PASSED, replace(FAILED, required=False)), ev.ExecutionStatus.COMPLETED),
    ],
)
async def test_the_checks_on_the_branch_decide(world: World, delivered, status):
    world.fleet.delivered = delivered
    state = await world.run(a_task(kind=TaskKind.ORCHESTRATE, delivery=Delivery(branch="topic")))
    assert state.status is status
    assert state.delivered is not None
    assert state.delivered.branch == "topic"


async def test_cancelling_stops_the_agents_and_keeps_what_was_done(world: World):
    never = asyncio.Event()
    world.fleet.runs = {name: ScriptedRun(after=never) for name in ("agent-dev-1", "agent-dev-2")}
    async with world.running() as executions:
        submission = await executions.submit(a_task())
        await world.fleet.started(3)
        while not (await executions.get(DEFAULT_TENANT, submission.execution_id)).candidates:
            await asyncio.sleep(0)
        state = await executions.cancel(DEFAULT_TENANT, submission.execution_id, "changed my mind")
        assert state.status is ev.ExecutionStatus.CANCELLED
        assert state.error == "changed my mind"
        assert sorted(world.fleet.cancelled) == ["agent-dev-1", "agent-dev-2"]
        await published(executions, submission.execution_id)
        again = await executions.cancel(DEFAULT_TENANT, submission.execution_id, "again")
        assert (again.status, again.error) == (state.status, state.error)
        with pytest.raises(NotFound):
            await executions.cancel(DEFAULT_TENANT, "00000000-0000-0000-0000-000000000000")
        # Before any agent has started nobody has to be stopped.
        early = await executions.submit(a_task("task-2"))
        assert (await executions.cancel(DEFAULT_TENANT, early.execution_id)).status is ev.ExecutionStatus.CANCELLED
        assert len(world.fleet.begun) == 3
        await published(executions, early.execution_id)
    assert [json.loads(one.payload)["status"] for one in world.log.results] == ["cancelled"] * 2


async def test_the_same_task_again_is_the_same_execution(world: World):
    async with world.running() as executions:
        first = await executions.submit(a_task())
        # It is known as soon as it is accepted.
        known = executions.projection.get(DEFAULT_TENANT, first.execution_id)
        assert known is not None and known.status is ev.ExecutionStatus.PENDING
        again = await executions.submit(a_task())
        assert (first.existed, again.existed) == (False, True)
        assert first.execution_id == again.execution_id
        with pytest.raises(AlreadyExists) as other:
            await executions.submit(a_task(description="Add a farewell"))
        assert other.value.field == "task_id"
        rerun = await executions.submit(a_task(attempt=2))
        assert not rerun.existed
        assert rerun.execution_id != first.execution_id
        assert (await executions.latest(DEFAULT_TENANT, "task-1")).task.attempt == 2


async def test_more_than_may_run_at_once_waits_and_more_than_may_wait_is_refused(world: World):
    gate = asyncio.Event()
    world.fleet.default = ScriptedRun(after=gate)
    async with world.running(room=Room(executions=1, queued=2, queued_per_caller=1)) as executions:
        first = await executions.submit(a_task())
        await world.fleet.started(3)
        second = await executions.submit(a_task("task-2", caller="ada"))
        with pytest.raises(ResourceExhausted, match="this caller"):
            await executions.submit(a_task("task-3", caller="ada"))
        third = await executions.submit(a_task("task-3", caller="bob", priority=5))
        with pytest.raises(ResourceExhausted):
            await executions.submit(a_task("task-4"))
        assert (await executions.submit(a_task("task-2"))).existed
        # What waits can be cancelled at once, and leaves its place to another.
        state = await executions.cancel(DEFAULT_TENANT, third.execution_id, "never mind")
        assert (state.status, state.error) == (ev.ExecutionStatus.CANCELLED, "never mind")
        third = await executions.submit(a_task("task-5", caller="bob", priority=5))
        assert len(world.fleet.begun) == 3
        gate.set()
        for submission in (first, second, third):
            assert (
                await executions.wait(DEFAULT_TENANT, submission.execution_id)
            ).status is ev.ExecutionStatus.COMPLETED
    order = [one.execution_id for one in world.fleet.begun[::3]]
    assert order == [first.execution_id, third.execution_id, second.execution_id]


async def test_a_bad_task_leaves_no_trace_and_nothing_is_accepted_while_no_model_answers(world: World):
    world.workspaces.faults = {
        "gone": PreconditionFailed("no such ref", field="repo.ref"),
        "away": Unavailable("the remote does not answer", field="repo.url"),
    }
    async with world.running(room=Room(agents=5)) as executions:
        for task, field in (
            (a_task(repo=RepoRef(location="/srv/app", ref="gone")), "repo.ref"),
            (a_task(repo=RepoRef(location="/srv/app", ref="away")), "repo.url"),
            (a_task(num_agents=6), "num_agents"),
        ):
            with pytest.raises(FleetError) as refused:
                await executions.submit(task)
            assert refused.value.field == field
        with pytest.raises(NotFound):
            await anext(executions.watch(DEFAULT_TENANT, "00000000-0000-0000-0000-000000000000"))
        world.model.fault = ModelUnavailable("the model server is down", field="model_url")
        with pytest.raises(ModelUnavailable):
            await executions.submit(a_task())
        assert world.log.events == []
        world.model.fault = None
        assert not (await executions.submit(a_task())).existed
