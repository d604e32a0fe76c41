"""Domain values and messages of the contract: what was sent is sent the same, and what is sent comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from fleet.context.v1 import context_pb2 as context
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.contract import from_message, to_message
from swe_ai_fleet.domain import context as graph
from swe_ai_fleet.domain.event import ModelReplied, ToolFinished, Writer
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.fleet_status import Component, MachineStatus
from swe_ai_fleet.domain.memory import Memory, Recommendation, WorkOutcome
from tests.orchestrator_service import REPO, Service, deliberation, orchestration
from tests.sampling import missing, sample, whole_state
from tests.tables import table

GOLDEN = Path(__file__).with_name("golden_wire.json")
SENT: Mapping[str, tuple[type[Message], Any]] = {
    "component": (pb.ComponentStatus, Component),
    "node": (pb.NodeStatus, MachineStatus),
    "story": (context.Story, graph.Story),
    "story_task": (context.Task, graph.StoryTask),
    "decision": (context.Decision, graph.Decision),
    "work_record": (context.WorkRecord, graph.WorkRecord),
    "relation": (context.Relation, graph.Relation),
    "context_request": (context.GetContextRequest, graph.ContextRequest),
    "outcome": (context.Outcome, WorkOutcome),
    "recommendation": (context.RecommendApproachResponse, Recommendation),
    "context": (context.GetContextResponse, graph.GatheredContext),
}
CALLED = {"node": "NodeStatus", "outcome": "Outcome"}
"""Types that had another name when the golden file was written."""


@table("name", SENT)
def test_what_was_sent_before_is_sent_the_same(name: str) -> None:
    """`golden_wire.json` was written by converters that named each field by hand (November 2026).

    Changed since: `artifacts` of a delivered winner name the delivered commit, and `joint` stands in ids of subtasks.
    """
    message, kind = SENT[name]
    sent = to_message(message, sample(kind, CALLED.get(name, "")), **({"version": 3} if name == "context" else {}))
    now = json_format.MessageToDict(sent, preserving_proto_field_name=True)
    assert not missing(json.loads(GOLDEN.read_text())[name], now)


async def test_whole_replies_are_sent_the_same() -> None:
    golden, state = json.loads(GOLDEN.read_text()), whole_state()

    async def submit(*_: object, **__: object) -> Any:
        return SimpleNamespace(execution_id=state.execution_id, existed=False)

    async def known(*_: object) -> ExecutionState:
        return state

    async with Service().running() as service:
        agent = state.candidates["first"].agent_id
        writer = Writer(
            tenant=state.task.tenant, execution_id=state.execution_id, task_id="t", generation=1, agent_id=agent
        )
        async with service.log.journal(writer, fresh=True) as journal:
            for body in (sample(ModelReplied, step=3), sample(ToolFinished)):
                await journal.append(body)
        service.executions.submit, service.executions.wait, service.executions.get = submit, known, known
        asked = pb.GetExecutionRequest(execution_id="00000000-0000-4000-8000-000000000000")
        patch = pb.SubmittedPatch(name="first", diff=b"d")
        for name, reply in (
            ("deliberation", await service.stub.Deliberate(deliberation())),
            ("orchestration", await service.stub.Orchestrate(orchestration())),
            (
                "judgement",
                await service.stub.JudgePatches(pb.JudgePatchesRequest(task_id="t", repo=REPO, patches=[patch])),
            ),
            ("execution", (await service.stub.GetExecution(asked)).execution),
        ):
            now = json_format.MessageToDict(reply, preserving_proto_field_name=True)
            assert not missing(golden[name], now), name
    golden["operation"]["output_artifact"]["execution_id"] = state.execution_id
    assert not missing(golden["operation"], now["results"][0]["operations"][0])


OF_THE_SERVER = {"tenant": "default"}
"""What a value has and its message has not: whose it is says the call."""


@table(("message", "kind"), [*list(SENT.values())[:-1], (context.Memory, Memory)])
def test_every_field_comes_back(message: type[Message], kind: Any) -> None:
    there = {one.name for one in fields(kind)}
    value = sample(kind, **{name: value for name, value in OF_THE_SERVER.items() if name in there})
    assert from_message(kind, to_message(message, value)) == value
