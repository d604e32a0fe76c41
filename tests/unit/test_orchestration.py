"""Orchestration in parts, over the log in memory: agents follow a script, merges are lists of patches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import pytest

from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.budget import Totals, Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errors import AgentLost, AlreadyExists, InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.event import (
    ChecksFinished,
    ExecutionClaimed,
    ExecutionStarted,
    ExecutionStatus,
    SubtaskEnded,
    SubtasksDerived,
    SubtaskStarted,
    WinnerDelivered,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.subtask import SKIPPED, Derivation, Subtask
from swe_ai_fleet.domain.task import Constraints, Delivery, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.agent_runs import AgentRuns
from swe_ai_fleet.orchestrator.approvals import Approvals
from swe_ai_fleet.orchestrator.endings import Ending
from swe_ai_fleet.orchestrator.orchestrate import Orchestration
from swe_ai_fleet.orchestrator.recipes import Recipes
from swe_ai_fleet.orchestrator.underway import Underway
from swe_ai_fleet.testing.fleet import FAILED, PROVEN, ScriptedFleet, ScriptedRun
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.testing.workspaces import DRAFT, ScriptedWorkspaces
from tests.candidates import a_candidate

SECONDS = 20
REPOSITORY = PinnedRepository(tenant="default", location="/srv/app", commit="b" * 40)
TASK = Task(
    task_id="build",
    kind=TaskKind.ORCHESTRATE,
    description="Build it all",
    repo=RepoRef(location="/srv/app"),
    derive_subtasks=True,
)


def a_subtask(name: str, *dependencies: str, priority: int = 0) -> Subtask:
    return Subtask(subtask_id=name, description=f"Do {name}", dependencies=dependencies, priority=priority)


DIAMOND = (a_subtask("a"), a_subtask("b", "a"), a_subtask("c", "a"), a_subtask("d", "b", "c"))


def patch(name: str) -> bytes:
    return f"+{name}\n".encode()


@dataclass
class Children:
    """Executions of subtasks, each ending as it is told: with a winner, unless `ends` says otherwise."""

    blobs: MemoryLog
    ends: dict[str, ExecutionStatus] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    states: dict[str, ExecutionState] = field(default_factory=dict)
    submitted: list[tuple[str, str]] = field(default_factory=list)
    refusals: dict[str, Exception] = field(default_factory=dict)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def begin(self, task: Task, repository: PinnedRepository) -> str:
        name = task.task_id.removeprefix("build.")
        if name in self.refusals:
            raise self.refusals[name]
        known = self.states.get(task.execution_id)
        if known is None:
            async with self.news:
                self.submitted.append((name, repository.commit))
                self.news.notify_all()
            self.states[task.execution_id] = await self.ending(name, task, repository)
        else:
            assert known.fingerprint == task.fingerprint()
        return task.execution_id

    async def ending(self, name: str, task: Task, repository: PinnedRepository) -> ExecutionState:
        status = self.ends.get(name, ExecutionStatus.COMPLETED)
        won = status is ExecutionStatus.COMPLETED
        ref = await self.blobs.put("default", task.execution_id, patch(name), "text/x-diff")
        candidate = a_candidate("agent-dev-1", artifacts=Artifacts(patch=ref))
        return ExecutionState(
            execution_id=task.execution_id,
            task=task,
            repository=repository,
            fingerprint=task.fingerprint(),
            started_at="2026-01-01T00:00:00+00:00",
            updated_at="2026-01-01T00:00:00+00:00",
            finished_at="2026-01-01T00:00:00+00:00",
            status=status,
            candidates={"agent-dev-1": candidate},
            winner_id="agent-dev-1" if won else "",
            error="" if won else "no candidate passed",
            usage=Usage(prompt_tokens=10),
        )

    async def wait(self, tenant: str, execution_id: str) -> ExecutionState:
        state = self.states[execution_id]
        if gate := self.gates.get(state.task.task_id.removeprefix("build.")):
            await gate.wait()
        return state

    async def cancel(self, tenant: str, execution_id: str, reason: str = "") -> ExecutionState:
        raise AssertionError("nobody cancels")

    def by_name(self) -> dict[str, ExecutionState]:
        return {state.task.task_id.removeprefix("build."): state for state in self.states.values()}

    async def begun(self, count: int) -> None:
        async with self.news:
            await self.news.wait_for(lambda: len(self.submitted) >= count)


async def nobody_deliberates() -> NoReturn:
    raise AssertionError("there are subtasks")


class Log(MemoryLog):
    """A log whose blobs outlive it: they are somebody else's."""

    def __init__(self, blobs: MemoryLog) -> None:
        super().__init__()
        self.put, self.get = blobs.put, blobs.get


@dataclass
class World:
    """One orchestration, and what it works with."""

    subtasks: Sequence[Subtask] = DIAMOND
    task: Task = TASK
    blobs: MemoryLog = field(default_factory=MemoryLog)
    log: Log = field(init=False)
    workspaces: ScriptedWorkspaces = field(default_factory=ScriptedWorkspaces)
    fleet: ScriptedFleet = field(init=False)
    children: Children = field(init=False)

    def __post_init__(self) -> None:
        self.log = Log(self.blobs)
        self.children = Children(self.blobs)
        self.fleet = ScriptedFleet(storage=self.log)
        self.fleet.deriving = lambda _: Derivation(
            derivation_id="x", subtasks=tuple(self.subtasks), usage=Usage(prompt_tokens=5)
        )

    async def run(self, generation: int = 1) -> Ending:
        """Drive it as a process would that finds the log as it is now."""
        writer = Writer(tenant="default", execution_id=self.task.execution_id, task_id=self.task.task_id)
        if not self.log.events:
            started = ExecutionStarted(task=self.task, repository=REPOSITORY, fingerprint=self.task.fingerprint())
            async with self.log.journal(replace(writer, generation=0), fresh=True) as journal:
                await journal.append(started)
        approvals = Approvals(self.log, self.task)
        async with asyncio.timeout(SECONDS), self.log.journal(replace(writer, generation=generation)) as journal:
            await journal.append(ExecutionClaimed(generation=generation, owner="test"))
            known = await approvals.refresh()
            runs = AgentRuns(
                fleet=self.fleet,
                journal=journal,
                approvals=approvals,
                generation=generation,
                known=known,
                pauses=(0.0, 0.0),
            )
            work = Underway(
                runs=runs,
                parts=self.children,
                workspaces=self.workspaces,
                blobs=self.blobs,
                recipes=Recipes(),
            )
            return await Orchestration(work=work, deliberate=nobody_deliberates).run()

    def bodies(self, kind: type) -> list:
        return [event.body for event in self.log.events if isinstance(event.body, kind)]

    @property
    def outcomes(self) -> dict[str, str]:
        return {one.outcome.subtask_id: str(one.outcome.status) for one in self.bodies(SubtaskEnded)}

    def merged(self, commit: str) -> list[str]:
        return [one.decode().strip("+\n") for one in self.workspaces.merged.get(commit, ())]

    def after(self, count: int, *, children: Children | None = None) -> World:
        """The world that a process finds after a crash behind so many events; blobs and merges are what they are."""
        world = World(subtasks=self.subtasks, task=self.task, blobs=self.blobs, workspaces=self.workspaces)
        for event in self.log.events[:count]:
            _, agent_id, generation, ordinal = event.id.split("/")
            writer = Writer(
                tenant=event.tenant,
                execution_id=event.execution_id,
                task_id=event.task_id,
                agent_id=agent_id,
                generation=int(generation),
            )
            world.log.store(writer, int(ordinal), to_json(event))
        world.fleet.runs = self.fleet.runs
        world.children = children or Children(self.blobs, ends=self.children.ends)
        return world


async def test_a_diamond_is_merged_in_order_and_delivered_commit_by_commit():
    world = World()
    ending = await world.run()
    assert (ending.status, ending.error) == (ExecutionStatus.COMPLETED, "")
    head = world.workspaces.branches["fleet/build"]
    merged = world.merged(head)
    assert (merged[0], sorted(merged[1:3]), merged[3]) == ("a", ["b", "c"], "d")
    bases = {name: world.merged(base) for name, base in world.children.submitted}
    assert (bases["a"], sorted(bases["d"])) == ([], ["a", "b", "c"])
    assert bases["b"][0] == bases["c"][0] == "a"
    (delivered,) = world.bodies(WinnerDelivered)
    assert (delivered.delivered.commit_sha, delivered.delivered.branch) == (head, "fleet/build")
    assert await world.blobs.get(delivered.delivered.patch) == b"".join(map(patch, merged))
    assert await world.blobs.get(delivered.delivered.bundle) == f"bundle of {head}".encode()
    assert ending.usage.prompt_tokens == 5 + 4 * 10
    (whole,) = world.fleet.checked
    assert (whole.repository.commit, whole.baseline, whole.task) == (head, REPOSITORY, TASK)


async def test_subtasks_that_need_nothing_of_each_other_run_at_the_same_time():
    world = World(subtasks=(a_subtask("a"), a_subtask("b", priority=5), a_subtask("c", "a", "b")))
    world.children.gates = {"a": asyncio.Event(), "b": asyncio.Event()}
    running = asyncio.create_task(world.run())
    await world.children.begun(2)
    assert world.children.submitted == [("b", REPOSITORY.commit), ("a", REPOSITORY.commit)]
    world.children.gates["b"].set()
    world.children.gates["a"].set()
    assert (await running).status is ExecutionStatus.COMPLETED


async def test_commits_say_where_they_come_from_and_are_dated_by_the_log():
    world = World(subtasks=(a_subtask("a"),), task=replace(TASK, delivery=Delivery(author_name="Ada")))
    await world.run()
    (request,) = world.workspaces.merges
    child = world.children.states[request_execution(world)]
    assert request.message.splitlines()[0] == "Do a"
    for trailer in ("Fleet-Task: build.a", f"Fleet-Execution: {child.execution_id}", "Fleet-Agent: agent-dev-1"):
        assert trailer in request.message
    assert (request.author_name, request.at, request.since) == ("Ada", child.finished_at, REPOSITORY.commit)


def request_execution(world: World) -> str:
    (started,) = world.bodies(SubtaskStarted)
    return started.execution_id


async def test_a_failed_subtask_stops_what_depends_on_it_and_nothing_else():
    world = World(subtasks=(*DIAMOND, a_subtask("alone")))
    world.children.ends = {"b": ExecutionStatus.NO_WINNER}
    ending = await world.run()
    assert ending.status is ExecutionStatus.FAILED
    assert ending.error == "subtasks failed: b (no candidate passed); skipped: d"
    assert world.outcomes == {
        "a": "completed",
        "b": "no_winner",
        "c": "completed",
        "d": SKIPPED,
        "alone": "completed",
    }
    assert (world.workspaces.branches, world.workspaces.deliveries, world.bodies(WinnerDelivered)) == ({}, [], [])
    last = [one.repository for one in world.bodies(SubtaskEnded) if one.repository][-1]
    assert sorted(world.merged(last.commit)) == ["a", "alone", "c"]
    assert await world.blobs.get(last.bundle) == f"bundle of {last.commit}".encode()


async def test_a_subtask_that_cannot_be_handed_in_fails_alone():
    world = World(subtasks=(a_subtask("a"), a_subtask("b")))
    world.children.refusals = {"a": AlreadyExists("task 'build.a' exists with other content")}
    ending = await world.run()
    assert ending.error == "subtasks failed: a (task 'build.a' exists with other content)"
    assert world.outcomes == {"a": "failed", "b": "completed"}


async def test_what_does_not_hold_together_is_not_delivered():
    world = World()
    world.fleet.runs = {"integration": ScriptedRun(checks=(FAILED,))}
    ending = await world.run()
    assert (ending.status, ending.error) == (
        ExecutionStatus.FAILED,
        "every subtask passed, but together they do not: tests",
    )
    assert (world.workspaces.branches, world.bodies(WinnerDelivered)) == ({}, [])


async def test_where_proof_is_wanted_only_a_verified_whole_is_delivered():
    task = replace(TASK, constraints=Constraints(require_verified=True))
    world = World(task=task)
    ending = await world.run()
    assert ending.status is ExecutionStatus.NO_WINNER
    assert ending.error.startswith("together the subtasks are not verified: tests: 1 passed, no test fails without")
    assert (world.workspaces.branches, world.bodies(WinnerDelivered)) == ({}, [])
    # The whole has to be verified, and the last part, which completes it; the others need not be.
    proof = {name: state.task.constraints.require_verified for name, state in world.children.by_name().items()}
    assert proof == {"a": False, "b": False, "c": False, "d": True}
    world = World(task=task)
    world.fleet.runs = {"integration": ScriptedRun(checks=(PROVEN,))}
    assert (await world.run()).status is ExecutionStatus.COMPLETED


async def test_subtasks_that_change_nothing_together_deliver_nothing():
    world = World(subtasks=(a_subtask("a"),))
    world.workspaces.merged[REPOSITORY.commit] = (patch("a"),)
    ending = await world.run()
    assert (ending.status, ending.error) == (ExecutionStatus.FAILED, "together the subtasks change nothing")
    assert world.outcomes == {"a": "completed"}


CONFLICT = (a_subtask("a"), a_subtask("b"))


def conflicting(**changes: object) -> World:
    world = World(subtasks=CONFLICT, **changes)
    world.workspaces.conflicts = {patch("a"): ("app.py",), patch("b"): ("app.py",)}
    return world


async def test_a_conflict_goes_to_an_agent_with_both_sides():
    world = conflicting()
    world.fleet.default = ScriptedRun(patch=b"+both\n")
    assert (await world.run()).status is ExecutionStatus.COMPLETED
    (assignment,) = world.fleet.begun
    first, second = world.merged(world.workspaces.branches["fleet/build"])[:2]
    head = world.bodies(SubtaskEnded)[0].repository
    assert assignment.agent_id == f"merge-{second}-{head.commit[:12]}"
    assert assignment.repository.commit.startswith(DRAFT)
    assert assignment.execution_id == assignment.task.execution_id == TASK.execution_id
    assert f"Do {second}" in assignment.task.description
    assert "- app.py" in assignment.task.description
    assert "CONFLICT in app.py" in assignment.task.context
    check = next(one for one in world.fleet.checked if one.candidate_id == assignment.agent_id)
    assert check.repository == head
    assert await world.blobs.get(check.patch) == patch(second) + b"+both\n"
    assert world.merged(world.workspaces.branches["fleet/build"]) == [first, second, "both"]
    assert f"Fleet-Merge: {assignment.agent_id}" in world.workspaces.merges[-1].message


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (ScriptedRun(patch=b"+both\n", checks=(FAILED,)), "the resolution did not pass: tests"),
        (ScriptedRun(patch=b"+<<<<<<< integration\n"), "leaves conflict markers"),
        (ScriptedRun(patch=b"+both\n", fault=PreconditionFailed("no clone")), "no clone"),
        (ScriptedRun(fault=AgentLost("its host died")), "its host died"),
        (ScriptedRun(stop_reason=StopReason.REJECTED, error="rejected: no"), "rejected: no"),
    ],
)
async def test_a_conflict_that_stays_unresolved_fails_its_subtask(script: ScriptedRun, reason: str):
    world = conflicting()
    world.fleet.default = script
    ending = await world.run()
    assert ending.status is ExecutionStatus.FAILED
    assert reason in ending.error
    merged = [one.outcome for one in world.bodies(SubtaskEnded) if one.outcome.commit_sha]
    assert len(merged) == 1
    assert len(world.merged(merged[0].commit_sha)) == 1


async def test_a_resolution_has_what_merging_may_spend_and_no_more():
    totals = replace(TASK, constraints=Constraints(totals=Totals(max_tokens=3_005)))
    world = conflicting(task=totals)
    world.fleet.default = ScriptedRun(patch=b"+both\n")
    ending = await world.run()
    (assignment,) = world.fleet.begun
    # 3,000 are left by the planner, for two subtasks and the merging.
    assert assignment.task.constraints.limits.max_tokens == 1_000
    assert [state.task.constraints.totals.max_tokens for state in world.children.states.values()] == [1_000, 1_000]
    assert ending.usage.total_tokens == 5 + 2 * 10 + 101


async def test_a_planner_that_dies_is_asked_again_and_one_that_finds_no_split_ends_it():
    world = World(subtasks=(a_subtask("a"),))
    sound, calls = world.fleet.deriving, []

    def dies_once(assignment):
        calls.append(assignment.generation)
        if len(calls) == 1:
            raise AgentLost("its host died")
        return sound(assignment)

    world.fleet.deriving = dies_once
    assert (await world.run()).status is ExecutionStatus.COMPLETED
    assert calls == [1, 2]

    world = World(subtasks=(a_subtask("a", "b"), a_subtask("b", "a")))
    with pytest.raises(InvalidRequest, match="cycle"):
        await world.run()
    assert world.bodies(SubtasksDerived) == []


async def test_whatever_is_cut_off_is_carried_to_the_same_end():
    whole = World(subtasks=(*DIAMOND, a_subtask("alone", "a")))
    whole.workspaces.conflicts = {patch("d"): ("app.py",)}
    whole.fleet.runs = {}
    whole.fleet.default = ScriptedRun(patch=b"+both\n")
    assert (await whole.run()).status is ExecutionStatus.COMPLETED
    branch = sorted(whole.merged(whole.workspaces.branches["fleet/build"]))
    assert branch == ["a", "alone", "b", "both", "c", "d"]
    for count in range(1, len(whole.log.events) + 1):
        for children in (None, whole.children):
            whole.workspaces.branches.clear()
            world = whole.after(count, children=children)
            world.fleet.default = whole.fleet.default
            before = list(world.children.submitted)
            known = world.outcomes
            derived = bool(world.bodies(SubtasksDerived))
            checked = any(one.report.candidate_id == "integration" for one in world.bodies(ChecksFinished))
            delivered = bool(world.bodies(WinnerDelivered))
            ending = await world.run(generation=2)
            assert (ending.status, ending.error) == (ExecutionStatus.COMPLETED, ""), count
            assert ending.usage.prompt_tokens >= 5 + 5 * 10
            # Nothing that the log tells of was done again, and everything else was, once.
            assert bool(world.fleet.derived) == (not derived)
            assert not {name for name, _ in world.children.submitted[len(before) :]} & set(known)
            assert any(one.candidate_id == "integration" for one in world.fleet.checked) == (not checked)
            assert len(world.bodies(WinnerDelivered)) == 1
            started = [one.subtask_id for one in world.bodies(SubtaskStarted)]
            ended = [one.outcome.subtask_id for one in world.bodies(SubtaskEnded)]
            assert sorted(started) == sorted(ended) == ["a", "alone", "b", "c", "d"]
            if not delivered:
                assert sorted(world.merged(world.workspaces.branches["fleet/build"])) == branch
