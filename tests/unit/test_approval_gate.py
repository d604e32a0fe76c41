"""What of a reply waits for a person, under each policy, and what the model is told afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from swe_ai_fleet.agents.approvals import PolicyGate
from swe_ai_fleet.agents.toolbox import CallVerdict, ReadCall
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.tools.catalogue import operations
from swe_ai_fleet.tools.secrets import Secrets
from tests.tables import table

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
