"""Orchestration in parts, over the log in memory: agents follow a script, merges are lists of patches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.assignment import Assignment, CodingAssignment
from swe_ai_fleet.domain.budget import Totals, Usage
from swe_ai_fleet.domain.errors import AgentLost, PreconditionFailed
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.subtask import SKIPPED, Derivation, Subtask
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Constraints, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from tests.recorded_runs import cut
from tests.scripted_fleet import FAILED, PROVEN, ScriptedFleet, ScriptedRun
from tests.scripted_workspaces import DRAFT
from tests.tables import table
from tests.unit.test_executions import World, a_task
from tests.unit.test_peer_review import INSIDE

T = TypeVar("T")
TASK = a_task("build", kind=TaskKind.ORCHESTRATE, derive_subtasks=True, num_agents=1, rounds=0)


def a_subtask(name: str, *dependencies: str, priority: int = 0) -> Subtask:
    return Subtask(subtask_id=name, description=f"Do {name}", dependencies=dependencies, priority=priority)


DIAMOND = (a_subtask("a"), a_subtask("b", "a"), a_subtask("c", "a"), a_subtask("d", "b", "c"))
PAIR = (a_subtask("a"), a_subtask("b"))
BOTH = ScriptedRun(patch=b"+both\n")


def patch(name: str) -> bytes:
    return f"+{name}\n".encode()


@dataclass(kw_only=True)
class PartsFleet(ScriptedFleet):
    """Agents of a subtask do what `parts` has for it, or leave its patch; `build` is the whole."""

    parts: dict[str, ScriptedRun] = field(default_factory=dict[str, ScriptedRun])

    async def run(self, assignment: Assignment[T]) -> T:
        part = assignment.task.task_id.removeprefix("build.")
        self.default = self.parts.get(part, ScriptedRun(patch=patch(part)))
        return await super().run(assignment)


@dataclass
class Parts(World):
    """One orchestration, and what it works with."""

    subtasks: Sequence[Subtask] = DIAMOND
    fleet: PartsFleet = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = PartsFleet(storage=self.log)
        self.fleet.deriving = lambda _: Derivation(
            derivation_id="x", subtasks=tuple(self.subtasks), usage=Usage(prompt_tokens=5)
        )

    @property
    def begun(self) -> dict[str, CodingAssignment]:
        """What agents of subtasks were asked first, by subtask."""
        return {one.task.task_id.removeprefix("build."): one for one in reversed(self.fleet.begun)}

    @property
    def merging(self) -> list[CodingAssignment]:
        return [one for one in self.fleet.begun if one.agent_id.startswith("merge-")]

    @property
    def outcomes(self) -> dict[str, str]:
        return {one.outcome.subtask_id: str(one.outcome.status) for one in self.bodies(ev.SubtaskEnded)}

    def merged(self, commit: str) -> list[str]:
        return [one.decode().strip("+\n") for one in self.workspaces.merged.get(commit, ())]

    @property
    def branch(self) -> list[str]:
        return self.merged(self.workspaces.branches["fleet/build"])


async def test_a_diamond_is_merged_in_order_and_delivered_commit_by_commit():
    world, gate = Parts(), asyncio.Event()
    world.fleet.parts = {name: ScriptedRun(patch=patch(name), after=gate) for name in "bc"}
    running = asyncio.create_task(world.run(TASK))
    # What needs nothing of each other runs at the same time.
    await world.fleet.started(3)
    gate.set()
    state = await running
    assert (state.status, state.error) == (ev.ExecutionStatus.COMPLETED, "")
    head, merged = world.workspaces.branches["fleet/build"], world.branch
    assert (merged[0], sorted(merged[1:3]), merged[3]) == ("a", ["b", "c"], "d")
    bases = {name: world.merged(one.repository.commit) for name, one in world.begun.items()}
    assert (bases["a"], sorted(bases["d"])) == ([], ["a", "b", "c"])
    assert bases["b"][0] == bases["c"][0] == "a"
    (delivered,) = world.bodies(ev.WinnerDelivered)
    assert (delivered.delivered.commit_sha, delivered.delivered.branch) == (head, "fleet/build")
    assert await world.log.get(delivered.delivered.patch) == b"".join(map(patch, merged))
    assert await world.log.get(delivered.delivered.bundle) == f"bundle of {head}".encode()
    assert state.usage.total_tokens == 5 + 4 * 101
    (whole,) = [one for one in world.fleet.checked if one.candidate_id == "integration"]
    assert (whole.repository.commit, whole.baseline, whole.task) == (head, state.repository, TASK)


async def test_a_failed_subtask_stops_what_depends_on_it_and_nothing_else():
    world = Parts(subtasks=(*DIAMOND, a_subtask("alone")))
    world.fleet.parts = {"b": ScriptedRun(patch=patch("b"), checks=(FAILED,))}
    state = await world.run(TASK)
    assert state.status is ev.ExecutionStatus.FAILED
    assert state.error.startswith("subtasks failed: b (") and state.error.endswith("; skipped: d")
    completed = dict.fromkeys(("a", "c", "alone"), "completed")
    assert world.outcomes == {**completed, "b": "no_winner", "d": SKIPPED}
    assert (world.workspaces.branches, world.workspaces.deliveries, world.bodies(ev.WinnerDelivered)) == ({}, [], [])
    last = [one.repository for one in world.bodies(ev.SubtaskEnded) if one.repository][-1]
    assert sorted(world.merged(last.commit)) == ["a", "alone", "c"]
    assert await world.log.get(last.bundle) == f"bundle of {last.commit}".encode()


async def test_what_does_not_hold_together_is_not_delivered():
    world = Parts()
    world.fleet.runs = {"integration": ScriptedRun(checks=(FAILED,))}
    state = await world.run(TASK)
    together = "every subtask passed, but together they do not: tests"
    assert (state.status, state.error) == (ev.ExecutionStatus.FAILED, together)
    assert (world.workspaces.branches, world.bodies(ev.WinnerDelivered)) == ({}, [])


@table("proven", [False, True])
async def test_where_proof_is_wanted_only_a_verified_whole_is_delivered(proven: bool):
    world = Parts()
    world.fleet.parts = {"d": ScriptedRun(patch=patch("d"), checks=(PROVEN,))}
    if proven:
        world.fleet.runs = {"integration": ScriptedRun(checks=(PROVEN,))}
    state = await world.run(replace(TASK, constraints=Constraints(require_verified=True)))
    # The whole has to be verified, and the last part, which completes it; the others need not be.
    proof = {name: one.task.constraints.require_verified for name, one in world.begun.items()}
    assert proof == {"a": False, "b": False, "c": False, "d": True}
    assert state.status is (ev.ExecutionStatus.COMPLETED if proven else ev.ExecutionStatus.NO_WINNER)
    assert bool(world.workspaces.branches) is bool(world.bodies(ev.WinnerDelivered)) is proven
    unproven = "together the subtasks are not verified: tests: 1 passed, no test fails without"
    assert proven or state.error.startswith(unproven)


@table(
    ("wanted", "allowed", "expected"),
    [
        (("src/a/**",), (), ("src/a/**",)),
        ((), ("src/**",), ("src/**",)),
        (("src/a/**", "docs/*"), ("src/**",), ("src/a/**",)),
        (("docs/*",), ("src/**",), ("src/**",)),
        (("src/../x.py",), ("src/**",), ("src/**",)),
    ],
)
async def test_a_planner_cannot_widen_what_may_be_changed(wanted, allowed, expected):
    world = Parts(subtasks=[replace(PAIR[0], allowed_paths=wanted)])
    await world.run(replace(TASK, constraints=Constraints(allowed_paths=allowed)))
    assert world.begun["a"].task.constraints.allowed_paths == expected


def conflicting(resolution: ScriptedRun = BOTH) -> Parts:
    world = Parts(subtasks=PAIR)
    world.workspaces.conflicts = {patch("a"): ("app.py",), patch("b"): ("app.py",)}
    world.fleet.parts = {"build": resolution}
    return world


async def test_a_conflict_goes_to_an_agent_with_both_sides():
    world = conflicting()
    state = await world.run(replace(TASK, constraints=Constraints(totals=Totals(max_tokens=3_005))))
    assert state.status is ev.ExecutionStatus.COMPLETED
    (assignment,) = world.merging
    # 3,000 are left by the planner, for two subtasks and the merging.
    assert assignment.task.constraints.limits.max_tokens == 1_000
    assert [world.begun[name].task.constraints.totals.max_tokens for name in "ab"] == [1_000, 1_000]
    first, second = world.branch[:2]
    head = world.bodies(ev.SubtaskEnded)[0].repository
    assert assignment.agent_id == f"merge-{second}-{head.commit[:12]}"
    assert assignment.repository.commit.startswith(DRAFT)
    assert assignment.execution_id == assignment.task.execution_id == TASK.execution_id
    assert f"Do {second}" in assignment.task.description
    assert "- app.py" in assignment.task.description
    assert "CONFLICT in app.py" in assignment.task.context
    check = next(one for one in world.fleet.checked if one.candidate_id == assignment.agent_id)
    assert check.repository == head
    assert await world.log.get(check.patch) == patch(second) + b"+both\n"
    assert world.branch == [first, second, "both"]
    assert f"Fleet-Merge: {assignment.agent_id}" in world.workspaces.merges[-1].message


@table(
    ("script", "reason"),
    [
        (replace(BOTH, checks=(FAILED,)), "the resolution did not pass: tests"),
        (ScriptedRun(patch=b"+<<<<<<< integration\n"), "leaves conflict markers"),
        (replace(BOTH, fault=PreconditionFailed("no clone")), "no clone"),
        (ScriptedRun(fault=AgentLost("its host died")), "its host died"),
        (ScriptedRun(stop_reason=StopReason.REJECTED, error="rejected: no"), "rejected: no"),
    ],
)
async def test_a_conflict_that_stays_unresolved_fails_its_subtask(script: ScriptedRun, reason: str):
    world = conflicting(script)
    state = await world.run(TASK)
    assert state.status is ev.ExecutionStatus.FAILED
    assert reason in state.error
    merged = [one.outcome for one in world.bodies(ev.SubtaskEnded) if one.outcome.commit_sha]
    assert len(merged) == 1
    assert len(world.merged(merged[0].commit_sha)) == 1


async def ended(world: World, task: Task) -> ExecutionState:
    async with world.running() as executions:
        return await executions.wait(DEFAULT_TENANT, task.execution_id)


async def test_whatever_is_cut_off_is_carried_to_the_same_end():
    def scripted(world: Parts) -> Parts:
        world.subtasks = (*DIAMOND[:2], a_subtask("d", "a", "b"))
        world.workspaces.conflicts = {patch("d"): ("app.py",)}
        world.fleet.parts = {"build": BOTH}
        return world

    whole = scripted(Parts())
    assert (await whole.run(TASK)).status is ev.ExecutionStatus.COMPLETED
    branch = ["a", "b", "both", "d"]
    assert sorted(whole.branch) == branch
    # Every event of the whole, and one in so many of those that its parts tell.
    events = [(count, one) for count, one in enumerate(whole.log.events, 1) if not isinstance(one.body, INSIDE)]
    cuts = [count for count, event in events if event.execution_id == TASK.execution_id or count % 8 == 0]
    for count in cuts[:-1]:
        world = scripted(Parts(log=cut(whole.log, count), workspaces=whole.workspaces))
        whole.workspaces.branches.clear()
        derived, delivered = bool(world.bodies(ev.SubtasksDerived)), bool(world.bodies(ev.WinnerDelivered))
        checked = any(one.report.candidate_id == "integration" for one in world.bodies(ev.ChecksFinished))
        known = {f"build.{name}" for name in world.outcomes}
        state = await ended(world, TASK)
        assert (state.status, state.error) == (ev.ExecutionStatus.COMPLETED, ""), count
        # Nothing that the log tells of was done again, and everything else was, once.
        assert bool(world.fleet.derived) == (not derived), count
        assert not {one.task.task_id for one in world.fleet.begun} & known, count
        assert any(one.candidate_id == "integration" for one in world.fleet.checked) == (not checked), count
        assert len(world.bodies(ev.WinnerDelivered)) == 1, count
        assert len(world.bodies(ev.ExecutionStarted)) == 1 + 3, count
        started = [one.subtask_id for one in world.bodies(ev.SubtaskStarted)]
        assert sorted(started) == sorted(world.outcomes) == ["a", "b", "d"], count
        assert delivered or sorted(world.branch) == branch, count
