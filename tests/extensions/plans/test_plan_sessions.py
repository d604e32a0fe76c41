"""`fleet plan` on a running fleet."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from tests.fleet_client import Client
from tests.fleet_command import Shell
from tests.plan_script import PLAN_GOAL


async def test_a_goal_is_an_execution_like_any_other(client: Client, shell: Shell) -> None:
    """Listed, shown, watched, audited; decided about in its session, and as any execution is."""
    name = f"plan-{uuid.uuid4().hex[:8]}"
    proposed = await shell.fleet("plan", PLAN_GOAL, "--session", name, "--json")
    assert (proposed.code, json.loads(proposed.out)["approach"]) == (0, "Add them up.")
    (waiting,) = (await client.stub.ListExecutions(pb.ListExecutionsRequest(task_id=name), **client.call)).executions
    assert (waiting.kind, waiting.status) == (pb.EXECUTION_KIND_PLAN, pb.DELIBERATION_STATUS_AWAITING_APPROVAL)
    shown = await client.execution(waiting.execution_id)
    assert [(one.goal, one.proposal) for one in shown.pending_approvals] == [(PLAN_GOAL, "Add them up.")]
    watching = asyncio.ensure_future(client.events(waiting.execution_id))
    adjusted = await shell.fleet("plan", "adjust", name, "--text", "twice")
    assert (adjusted.code, "Add them up, twice." in adjusted.out) == (0, True)
    assert f"fleet plan approve {name}" in adjusted.err
    assert (await shell.fleet("approve", waiting.execution_id)).code == 0
    assert (await shell.fleet("plan", "approve", name)).code == 0
    carried = await shell.fleet("plan", "continue", name, "--json")
    result = json.loads(carried.out)
    assert (carried.code, result["status"], result["results"]) == (0, "completed", "They come to 25.")
    assert [(call["tool"], call["success"]) for call in result["tool_calls_made"]][-3:] == [
        ("calculator", True), ("python_executor", True), ("final_answer", True),
    ]  # fmt: skip
    events = await watching
    ended = await client.execution(waiting.execution_id)
    assert (ended.status, list(ended.pending_approvals)) == (pb.DELIBERATION_STATUS_COMPLETED, [])
    session = json.loads((await shell.fleet("plan", "show", name, "--json")).out)
    assert ended.usage.model_calls == session["usage"]["model_calls"] == 4
    told = [(event.type, event.agent_id) for event in events]
    assert [agent for kind, agent in told if kind == "model_replied"] == [
        "planner-1", "planner-2", "planner-3", "planner-3",
    ]  # fmt: skip
    called = [json.loads(event.payload_json)["entry"]["operation"] for event in events if event.type == "tool_finished"]
    assert called[-2:] == ["calculator", "python_executor"]
    assert told[-1][0] == "execution_finished"
    verified = await shell.fleet("audit", "verify", name)
    assert verified.code == 0, verified.err
    signed = [
        json.loads(event.payload_json)["head"]["agent_id"] for event in events if event.type == "audit_head_signed"
    ]
    assert {"planner-1", "planner-2", "planner-3"} <= set(signed)
    assert name in (await shell.fleet("list")).out
    listed = json.loads((await shell.fleet("plan", "list", "--json")).out)["sessions"]
    assert (name, "completed") in {(one["session_id"], one["status"]) for one in listed}
    rated = await shell.fleet("rate", name, "4", "--json")
    assert (rated.code, json.loads(rated.out)["approach"]) == (0, "plan")


@pytest.mark.slow  # quick: extensions/plans/test_plan_resumption.py
async def test_a_goal_is_cancelled_like_any_execution(client: Client, shell: Shell) -> None:
    name = f"plan-{uuid.uuid4().hex[:8]}"
    assert (await shell.fleet("plan", PLAN_GOAL, "--session", name, "--json")).code == 0
    (waiting,) = (await client.stub.ListExecutions(pb.ListExecutionsRequest(task_id=name), **client.call)).executions
    cancelled = await shell.fleet("cancel", waiting.execution_id, "--reason", "too late")
    assert cancelled.code == 0, cancelled.err
    assert (await client.execution(waiting.execution_id)).status == pb.DELIBERATION_STATUS_CANCELLED
    refused = await shell.fleet("plan", "approve", name)
    assert (refused.code, "too late" in refused.err) == (2, True)
    session = json.loads((await shell.fleet("plan", "show", name, "--json")).out)
    assert (session["status"], "too late" in session["error"]) == ("error", True)
    outcome = (await shell.fleet("rate", name, "1", "--comment", "too slow", "--json")).document
    assert (outcome["status"], outcome["approach"], "too late" in outcome["reason"]) == ("cancelled", "plan", True)
