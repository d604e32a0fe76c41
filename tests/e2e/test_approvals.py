"""Agents that wait for people: asked, answered, gone on, over real gRPC, JetStream, Ray, git and sandbox."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain.memory import Memory
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.watching.events import verify_events
from tests.conftest import FleetUnderTest
from tests.fleet_client import Client, bodies, to_deliberate
from tests.fleet_command import Shell
from tests.scripts import HELLO_FILES, INTRUDING, PROPOSING


def proposing(repository: Path, words: str = "", **fields: Any) -> pb.DeliberateRequest:
    """A task whose plan waits for a person."""
    text = f"{PROPOSING} {words} {uuid.uuid4().hex[:8]}"
    return to_deliberate(text, repository, approval=pb.APPROVAL_POLICY_PLAN, **fields)


def conversation(model_server: ScriptedModelServer, text: str) -> list[dict[str, Any]]:
    """The messages of the last request about a task."""
    return next(body["messages"] for body in reversed(model_server.bodies) if text in json.dumps(body["messages"][:3]))


async def refused(call: Awaitable[object], field: str = "") -> grpc.StatusCode:
    """With what code a call is refused, and that its details name a field."""
    with pytest.raises(grpc.aio.AioRpcError) as fault:
        await call
    details = dict(fault.value.trailing_metadata() or ())["grpc-status-details-bin"]
    assert field.encode() in details, fault.value.details()
    return fault.value.code()


async def test_an_approved_plan_goes_on_from_where_it_stopped(
    client: Client, repository: Path, model_server: ScriptedModelServer
) -> None:
    execution_id = await client.submit(proposing(repository))
    waiting = await client.until(execution_id, "approval_requested")
    assert waiting.status == pb.DELIBERATION_STATUS_AWAITING_APPROVAL
    (asked,) = waiting.pending_approvals
    assert asked.agent_id == "agent-dev-1"
    assert asked.proposal == "Append hello_world to utils.py.\n\nIt is missing."
    assert asked.policy == pb.APPROVAL_POLICY_PLAN
    assert PROPOSING in asked.goal
    assert asked.diff == ""
    assert asked.expires_at_ms > asked.requested_at_ms
    assert [agent.status for agent in waiting.agents] == [pb.AGENT_STATUS_AWAITING_APPROVAL]

    for fields, code, field in (
        ({"decision": "APPROVED", "adjustment": "x"}, grpc.StatusCode.INVALID_ARGUMENT, "adjustment"),
        ({"decision": "APPROVED", "approver": "time-out"}, grpc.StatusCode.INVALID_ARGUMENT, "approver"),
        ({"decision": "APPROVED", "approval_id": "agent-dev-1.nothing"}, grpc.StatusCode.NOT_FOUND, "approval_id"),
    ):
        assert await refused(client.resolve(execution_id, **fields), field) is code, fields
    # Twice the same is the same, also when both come at once; something else is too late.
    approved = {"decision": "APPROVED", "approver": "ada", "comment": "but keep it short"}
    answers = await asyncio.gather(*(client.resolve(execution_id, **approved) for _ in range(3)))
    assert [answer.pending_approvals for answer in answers] == [0, 0, 0]
    late = client.resolve(execution_id, "APPROVED", comment="and this")
    assert await refused(late) is grpc.StatusCode.FAILED_PRECONDITION
    changed = client.resolve(execution_id, "REJECTED", approval_id=asked.approval_id)
    assert await refused(changed) is grpc.StatusCode.ALREADY_EXISTS
    events = await client.events(execution_id)
    assert bodies(events, "execution_finished")[0]["status"] == "completed"

    messages = conversation(model_server, waiting.task_description)
    told = [message["content"] for message in messages if message["role"] == "tool"]
    assert "propose first" in told[0]
    assert "def one()" in told[1]
    assert told[2].startswith("Approved by ada: but keep it short")
    assert "Append hello_world" in told[2]
    # It changes code and no test.
    assert len(told) == 5 and told[-1].startswith("Before this ends: the tests do not show this change")
    assert [message["role"] for message in messages].count("system") == 1
    replies = bodies(events, "model_replied")
    assert [reply["step"] for reply in replies] == [1, 2, 3, 4, 5, 6]

    assert [verdict.fault for verdict in verify_events(events)] == [None]
    (entry,) = [body["entry"] for body in bodies(events, "tool_finished") if body["entry"]["tool"] == "approval"]
    assert entry["reason"] == "approved by ada"
    assert entry["arguments"]["caller"].startswith("token holder at ")
    assert [claim["generation"] for claim in bodies(events, "run_claimed")] == [1, 2]
    assert len(bodies(events, "approval_resolved")) == 1
    assert len(bodies(events, "candidate_submitted")) == len(bodies(events, "checks_finished")) == 1


async def test_an_adjusted_plan_is_proposed_again_and_a_rejected_one_ends_the_execution(
    client: Client, repository: Path, model_server: ScriptedModelServer
) -> None:
    execution_id = await client.submit(proposing(repository, "twice"))
    first = await client.until(execution_id, "approval_requested")
    await client.resolve(execution_id, "ADJUSTED", approver="ada", adjustment="Use two blank lines.")
    second = await client.until(execution_id, "approval_requested", count=2)
    assert [one.approval_id for one in second.pending_approvals] != [one.approval_id for one in first.pending_approvals]
    told = [one["content"] for one in conversation(model_server, first.task_description) if one["role"] == "tool"]
    assert "ada asks for a change: Use two blank lines.\nCall propose_approach again" in told[0]
    await client.resolve(execution_id, "REJECTED", approver="grace", comment="not on a Friday")
    events = await client.events(execution_id)
    (finished,) = bodies(events, "execution_finished")
    assert (finished["status"], finished["error"]) == (
        "rejected", "the approach was rejected by grace: not on a Friday",
    )  # fmt: skip
    assert [run["stop_reason"] for run in bodies(events, "run_finished")] == ["rejected"]
    assert bodies(events, "candidate_submitted") == bodies(events, "checks_finished") == []
    assert [verdict.fault for verdict in verify_events(events)] == [None]
    ended = await client.execution(execution_id)
    assert (ended.status, ended.agents[0].stop_reason) == (
        pb.DELIBERATION_STATUS_REJECTED, pb.STOP_REASON_REJECTED,
    )  # fmt: skip
    assert not ended.pending_approvals


@pytest.mark.slow  # quick: cli rows
async def test_on_the_command_line(client: Client, repository: Path, shell: Shell) -> None:
    """`fleet run` says that it waits and how it is answered, `show` what for; rejected is exit code 5."""
    options = ("--repo", str(repository), "--agents", "1", "--approve", "plan")
    task_id = f"cli-{uuid.uuid4().hex[:8]}"
    running = await shell.start("run", f"{PROPOSING} {task_id}", *options, "--task-id", task_id)
    assert running.stderr is not None
    heard = ""
    while "awaits approval" not in heard:
        heard = (await asyncio.wait_for(running.stderr.readline(), 60)).decode()
        assert heard
    assert "its plan: Append hello_world" in heard
    assert "fleet approve " in heard
    shown = await shell.fleet("show", task_id)
    assert "agent-dev-1 asks for approval of its plan" in shown.out
    assert "    It is missing." in shown.out
    waiting = pb.ListExecutionsRequest(task_id=task_id, statuses=[pb.DELIBERATION_STATUS_AWAITING_APPROVAL])
    async with asyncio.timeout(60):
        # The list is kept up from the log, a moment behind it.
        while not (await client.stub.ListExecutions(waiting, **client.call)).executions:
            await asyncio.sleep(0.02)
    answer = await shell.fleet("reject", task_id, "--as", "grace", "--text", "not\x1b[2J now", "--json")
    assert (answer.code, answer.document["pending_approvals"]) == (0, 0)
    ended = await running.communicate()
    assert running.returncode == 5
    assert b"rejected by grace: not now" in ended[0]
    assert b"\x1b[2J" not in ended[0] + ended[1]
    assert (await shell.fleet("audit", "verify", task_id)).code == 0


async def test_an_agent_cannot_approve_itself(client: Client, tmp_path: Path, fleet: FleetUnderTest) -> None:
    """Neither the server's port nor its token is in reach of what an agent runs."""
    host, _, port = fleet.running.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.close()
    repository = make_repository(tmp_path / "r", {**HELLO_FILES, "port.txt": port})
    execution_id = await client.submit(to_deliberate(INTRUDING, repository))
    events = await client.events(execution_id)
    results = [body["result"] for body in bodies(events, "tool_finished")]
    tried = next(result for result in results if result["operation"] == "shell_run_command")
    assert tried["content"].split() == ["refused", "no-token"]


@pytest.mark.slow  # quick: unit/test_repository_memory.py
async def test_entities_chosen_at_submission_are_seen_at_the_gate(
    fleet: FleetUnderTest, client: Client, model_server: ScriptedModelServer, repository: Path
) -> None:
    word = f"Zephyr{uuid.uuid4().hex[:8]}"
    knowledge = pytest.importorskip("swe_ai_fleet.extensions.knowledge.client")
    async with knowledge.ContextServiceClient(fleet.running.context, fleet.running.context_token) as memories:
        await memories.remember(Memory(namespace=f"agent:{word}", text=f"{word} greets with a comma."))
    memory = pb.MemoryOptions(read=True, namespaces=[f"agent:{word}"], entities=[word, "Nothing Known"])
    execution_id = await client.submit(proposing(repository, word, memory=memory))
    (asked,) = (await client.until(execution_id, "approval_requested")).pending_approvals
    found = asked.memory_results
    assert (found.coverage, list(found.gaps)) == (50.0, ["Nothing Known"])
    assert f"{word} greets with a comma." in found.content
    assert found.sources[0].startswith("memory:")
    await client.resolve(execution_id, "APPROVED")
    events = await client.events(execution_id)
    # Its words are nothing like the task's, and yet the agent was told.
    started = bodies(events, "run_started")[0]
    assert f"{word} greets with a comma." in json.dumps(started["messages"])
    gathered = bodies(events, "context_gathered")[0]
    assert "no memories about Nothing Known" in gathered["context"]["omitted"]
