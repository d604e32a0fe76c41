"""Executions that wait for people, over the log in memory: restarts, time-outs, cancellation, decisions out of turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.errors import AlreadyExists, NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import ApprovalRequested, ApprovalResolved, ChecksFinished, ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.executions import Executions, Room
from tests.scripted_fleet import ScriptedRun
from tests.unit.test_executions import World, a_task, published


@pytest.fixture
def world() -> World:
    return World()


def decision(approval_id: str = "", word: str = "approved", **fields: str) -> ApprovalResolution:
    return ApprovalResolution(approval_id=approval_id, decision=ApprovalDecision(word), **fields)


async def waiting(executions: Executions, execution_id: str, count: int) -> ExecutionState:
    """The state once so many requests wait."""
    async for _ in executions.watch(DEFAULT_TENANT, execution_id):
        state = await executions.get(DEFAULT_TENANT, execution_id)
        if len(state.pending) == count:
            return state
    raise AssertionError("it ended first")


async def heard(executions: Executions, execution_id: str) -> None:
    """Until the list of executions says that it waits."""
    while executions.projection.get(DEFAULT_TENANT, execution_id).status is not ExecutionStatus.AWAITING_APPROVAL:
        await asyncio.sleep(0)


async def test_all_rejected_is_rejected_and_one_that_is_not_wins(world: World):
    world.fleet.default = ScriptedRun(asks=1)
    async with world.running() as executions:
        for at, (words, end) in enumerate(
            (
                (("rejected",) * 3, (ExecutionStatus.REJECTED, "")),
                (("rejected", "approved", "rejected"), (ExecutionStatus.COMPLETED, "agent-dev-2")),
            )
        ):
            execution_id = (await executions.submit(a_task(f"task-{at}"))).execution_id
            await waiting(executions, execution_id, 3)
            for number, word in enumerate(words, start=1):
                await executions.resolve(DEFAULT_TENANT, execution_id, decision(f"agent-dev-{number}.1", word))
            ended = await executions.wait(DEFAULT_TENANT, execution_id)
            assert (ended.status, ended.winner_id, ended.error) == (*end, "" if end[1] else "rejected")


async def test_a_restart_in_between_loses_neither_the_question_nor_the_work(world: World):
    """Candidates and evidence of before stand; who waits is not asked again; who was approved goes on."""
    world.fleet.runs = {"agent-dev-1": ScriptedRun(asks=1), "agent-dev-2": ScriptedRun(asks=1)}
    async with world.running() as executions:
        execution_id = (await executions.submit(a_task())).execution_id
        await waiting(executions, execution_id, 2)
        while not world.bodies(ChecksFinished):
            await asyncio.sleep(0)
    async with world.running() as executions:
        await heard(executions, execution_id)
        await executions.resolve(DEFAULT_TENANT, execution_id, decision("agent-dev-1.1"))
        await executions.resolve(DEFAULT_TENANT, execution_id, decision("agent-dev-2.1"))
        ended = await executions.wait(DEFAULT_TENANT, execution_id)
        await published(executions, execution_id)
    assert ended.status is ExecutionStatus.COMPLETED
    assert len(ended.ranking) == 3
    assert [one.request.approval_id for one in world.bodies(ApprovalRequested)] == ["agent-dev-1.1", "agent-dev-2.1"]
    begun = sorted((one.agent_id, one.generation, one.resume) for one in world.fleet.begun)
    assert begun == [
        ("agent-dev-1", 1, False),
        ("agent-dev-1", 2, True),
        ("agent-dev-2", 1, False),
        ("agent-dev-2", 2, True),
        ("agent-dev-3", 1, False),
    ]
    assert len(world.bodies(ChecksFinished)) == 3


@pytest.mark.parametrize("restart", [False, True])
async def test_nobody_answers_in_time(world: World, restart: bool):
    world.fleet.default = ScriptedRun(asks=1, approval_seconds=0.2)
    async with world.running() as executions:
        execution_id = (await executions.submit(a_task(num_agents=1))).execution_id
        await waiting(executions, execution_id, 1)
        if not restart:
            ended = await executions.wait(DEFAULT_TENANT, execution_id)
    if restart:
        # The clock runs from the request on, whoever is there to look at it.
        await asyncio.sleep(0.25)
        async with world.running() as executions:
            ended = await executions.wait(DEFAULT_TENANT, execution_id)
    assert ended.status is ExecutionStatus.REJECTED
    (resolution,) = (one.resolution for one in world.bodies(ApprovalResolved))
    assert (resolution.approver, resolution.decision) == ("time-out", ApprovalDecision.REJECTED)


async def test_cancelled_while_it_waits_and_answers_afterwards(world: World):
    world.fleet.default = ScriptedRun(asks=1)
    async with world.running() as executions:
        execution_id = (await executions.submit(a_task())).execution_id
        await waiting(executions, execution_id, 3)
        state = await executions.cancel(DEFAULT_TENANT, execution_id)
        assert (state.status, state.pending) == (ExecutionStatus.CANCELLED, ())
        assert {agent.stop_reason for name, agent in state.agents.items() if name != "_"} <= {"cancelled"}
        for said in (decision(), decision("agent-dev-1.1")):
            with pytest.raises(PreconditionFailed, match="has ended"):
                await executions.resolve(DEFAULT_TENANT, execution_id, said)


async def test_which_one_is_meant(world: World):
    world.fleet.default = ScriptedRun(asks=1)
    async with world.running() as executions:
        execution_id = (await executions.submit(a_task(num_agents=2))).execution_id
        await waiting(executions, execution_id, 2)
        with pytest.raises(PreconditionFailed, match=r"agent-dev-1\.1"):
            await executions.resolve(DEFAULT_TENANT, execution_id, decision())
        with pytest.raises(NotFound):
            await executions.resolve(DEFAULT_TENANT, execution_id, decision("agent-dev-3.1"))
        same = decision("agent-dev-1.1", text="fine")
        await asyncio.gather(*(executions.resolve(DEFAULT_TENANT, execution_id, same) for _ in range(5)))
        with pytest.raises(AlreadyExists):
            await executions.resolve(DEFAULT_TENANT, execution_id, replace(same, decision=ApprovalDecision.REJECTED))
        # Of two that contradict each other at the same moment, one holds.
        both = await asyncio.gather(
            executions.resolve(DEFAULT_TENANT, execution_id, decision("agent-dev-2.1")),
            executions.resolve(DEFAULT_TENANT, execution_id, decision("agent-dev-2.1", "rejected")),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in both) == ["AlreadyExists", "ExecutionState"]
        await executions.wait(DEFAULT_TENANT, execution_id)


async def test_waiting_takes_no_place(world: World):
    world.fleet.default = ScriptedRun(asks=1)
    async with world.running(room=Room(executions=1)) as executions:
        first = (await executions.submit(a_task(num_agents=1))).execution_id
        second = (await executions.submit(a_task("task-2", num_agents=1))).execution_id
        await waiting(executions, first, 1)
        await waiting(executions, second, 1)
        for execution_id in (first, second):
            await executions.resolve(DEFAULT_TENANT, execution_id, decision())
            assert (await executions.wait(DEFAULT_TENANT, execution_id)).status is ExecutionStatus.COMPLETED
