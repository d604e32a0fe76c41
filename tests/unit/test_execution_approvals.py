"""What waits for people under each policy, and executions that wait: restarts, time-outs, decisions out of turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from swe_ai_fleet.agents.approvals import PolicyGate
from swe_ai_fleet.agents.toolbox import CallVerdict, ReadCall
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.errors import AlreadyExists, NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import ApprovalRequested, ApprovalResolved, ChecksFinished, ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import DEFAULT_TENANT, ApprovalPolicy
from swe_ai_fleet.orchestrator.executions import Executions, Room
from swe_ai_fleet.tools.catalogue import operations
from swe_ai_fleet.tools.secrets import Secrets
from tests.scripted_fleet import ScriptedRun
from tests.tables import table
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


SPECS = {name: definition.spec for name, definition in operations().items()}


def preview(call: ToolCall, truncated: bool) -> ReadCall | None:
    if call.name not in SPECS or truncated:
        return None
    return ReadCall(spec=SPECS[call.name], arguments=json.loads(call.arguments))


class ScriptedApprovals:
    """An approval service that keeps its requests and gives the answers that the test set."""

    def __init__(self) -> None:
        self.asked: list[ApprovalRequest] = []
        self.answers: dict[str, ApprovalResolution] = {}
        self.effective: list[tuple[str, str]] = []

    async def ask(self, requests: Sequence[ApprovalRequest]) -> Mapping[str, ApprovalResolution]:
        self.asked += requests
        return {one.approval_id: self.answers[one.approval_id] for one in requests if one.approval_id in self.answers}

    def record_decision(self, request: ApprovalRequest, resolution: ApprovalResolution) -> None:
        self.effective.append((request.approval_id, str(resolution.decision)))

    def answer(self, call_id: str, word: str, text: str = "") -> None:
        name = f"agent-1.{call_id}"
        self.answers[name] = ApprovalResolution(
            approval_id=name, decision=ApprovalDecision(word), text=text, approver="ada"
        )


def gate(policy: str, approvals: ScriptedApprovals | None) -> PolicyGate:
    return PolicyGate(
        ApprovalPolicy(policy),
        agent_id="agent-1",
        goal="Do it with hunter2-secret",
        read=preview,
        approvals=approvals,
        mask=Secrets(("hunter2-secret",)),
        earlier=RunState(agent_id="agent-1"),
    )


def call(call_id: str, name: str, **arguments: object) -> ToolCall:
    return ToolCall(call_id=call_id, model_call_id=call_id, name=name, arguments=json.dumps(arguments))


READ = call("r", "files_read_file", path="a.py")
WRITE = call("w", "files_write_file", path="a.py", content="hunter2-secret")
TESTS = call("t", "tests_run")
DELETE = call("d", "shell_run_command", command="rm -rf src")
LIST = call("l", "shell_run_command", command="ls")
PLAN = call("p", "propose_approach", approach="Write a.py.", reasoning="It is missing.")


async def verdicts(one: PolicyGate, *calls: ToolCall) -> list[str]:
    return [str(ruling.verdict) for ruling in await one.review(calls, step=1)]


@table(("policy", "waiting"), [("plan", []), ("risky", ["d"]), ("every", ["w", "t", "d", "l"])])
async def test_who_waits(policy: str, waiting: list[str]):
    approvals = ScriptedApprovals()
    await gate(policy, approvals).review([READ, WRITE, TESTS, DELETE, LIST], step=3)
    assert [request.call.call_id for request in approvals.asked] == waiting
    assert all(request.step == 3 and request.policy == policy for request in approvals.asked)


async def test_before_a_plan_is_approved_nothing_is_changed():
    approvals = ScriptedApprovals()
    planning = gate("plan", approvals)
    assert await verdicts(planning, READ, WRITE, TESTS, LIST) == ["go", "refuse", "refuse", "refuse"]
    # What stands beside the proposal was written without an answer to it.
    assert await verdicts(planning, READ, PLAN, WRITE) == ["go", "wait", "go"]
    approvals.answer("p", "approved", "go on")
    rulings = await planning.review([READ, PLAN, WRITE], step=1)
    assert [one.verdict for one in rulings] == [CallVerdict.GO, CallVerdict.GO, CallVerdict.REFUSE]
    assert rulings[1].text == "Approved by ada: go on"
    assert await verdicts(planning, WRITE, PLAN) == ["go", "go"]
    assert approvals.effective == [("agent-1.p", "approved")]


async def test_secrets_are_not_shown():
    approvals = ScriptedApprovals()
    await gate("every", approvals).review([WRITE], step=1)
    (asked,) = approvals.asked
    assert "hunter2" not in f"{asked.goal} {asked.approach} {asked.call.arguments}"


async def test_with_nobody_to_ask_what_would_wait_is_refused():
    refused = await gate("every", None).review([READ, WRITE], step=1)
    assert [one.verdict for one in refused] == [CallVerdict.GO, CallVerdict.REFUSE]
    assert "nobody can be asked here" in refused[1].text
