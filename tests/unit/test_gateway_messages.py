"""What watchers are told: one message for each stored event."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.streams.messages import Messages
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.event import (
    ApprovalRequested,
    ApprovalResolved,
    CancelRequested,
    CandidateScored,
    EventBody,
    LoopNoticed,
    NodeUpdated,
    RunLost,
    SubtaskEnded,
)
from swe_ai_fleet.domain.review import VerifierScore
from swe_ai_fleet.domain.subtask import SubtaskOutcome
from swe_ai_fleet.domain.workflow import NodeStatus
from tests.event_source import a_deliberation, numbered
from tests.sampling import sample
from tests.tables import table

Told = tuple[str, EventBody]
KINDS = {"status", "node_update", "log", "completion", "error"}
OTHERS: tuple[Told, ...] = (
    ("agent-dev-1", ApprovalRequested(request=sample(ApprovalRequest, approval_id="a-1"))),
    ("_", ApprovalResolved(resolution=ApprovalResolution(approval_id="a-1", decision=ApprovalDecision.APPROVED))),
    ("~", CancelRequested(reason="enough")),
    ("_", RunLost(lost_agent_id="agent-dev-2", reason="its process died")),
    ("_", NodeUpdated(node_id="n[0]", status=NodeStatus.COMPLETED, output='{"a": 1}')),
    ("_", SubtaskEnded(outcome=SubtaskOutcome(subtask_id="s-1", status="failed", error="e"))),
    ("agent-dev-1", LoopNoticed(step=2, pattern="same call", advice="try another")),
    ("_", CandidateScored(score=VerifierScore(candidate_id="agent-dev-1", raw=0.8, score=0.7, outcomes=30))),
)


def told(events: Sequence[pb.ExecutionEvent], *, whole: bool = False) -> list[dict[str, Any]]:
    fold = Messages()
    return [json.loads(fold.of(event).body(whole)) for event in events]


def test_a_deliberation_is_told_from_its_start_through_its_agents_to_its_end() -> None:
    hostile = LoopNoticed(step=1, pattern="\x1b]0;title\x07<script>\u202e", advice="a\nb")
    story = a_deliberation(agents=2, steps=2)
    messages = told(numbered("e", [*story[:4], ("agent-dev-1", hostile), *story[4:]]))
    assert [message["status"] for message in messages[:2]] == ["pending", "running"]
    assert messages[0]["data"]["task_id"] == "t"
    nodes = [(one["node_id"], one["node_state"]["status"]) for one in messages if one["type"] == "node_update"]
    running = [(f"agent-dev-{number}", "running") for _ in range(2) for number in (1, 2)]
    assert nodes == [*running, ("agent-dev-1", "completed"), ("agent-dev-2", "completed")]
    assert [one["data"]["step"] for one in messages if one["type"] == "status"] == ["accepted", "solving", "checking"]
    assert messages[-1]["type"] == "completion"
    assert {"status": "completed", "winner_id": "agent-dev-1", "duration_ms": 9}.items() <= messages[-1][
        "result"
    ].items()
    words = [one["log"]["message"] for one in messages if one["type"] == "log"]
    assert {"agent-dev-1: step 1: calls files_read_file", "agent-dev-1: loop detected (<script>): a b"} <= set(words)
    assert all("\n" not in line and 0 < len(line) <= 200 for line in words)


@table("payload", ['{"type": "x", "n": 1}', "{broken", "", "[" * 5000])
@table("kind", ["run_finished", "of_tomorrow"])
def test_what_cannot_be_read_is_told_all_the_same(kind: str, payload: str) -> None:
    events = numbered("e", a_deliberation(agents=1, steps=1))
    events[4].type, events[4].payload_json = kind, payload
    messages = told(events, whole=True)
    assert len(messages) == len(events)
    assert messages[4]["type"] == "log"
    assert messages[4]["log"]["level"] == ("info" if kind == "of_tomorrow" else "warning")
    assert messages[-1]["type"] == "completion"


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), cut=st.floats(0, 1), beginning=st.booleans())
def test_every_event_has_exactly_one_message_in_its_order_whoever_resumes(
    seed: int, cut: float, beginning: bool
) -> None:
    chance = random.Random(seed)
    story = a_deliberation(agents=chance.randint(1, 4), steps=chance.randint(0, 3))
    for other in OTHERS:
        story.insert(chance.randint(1, len(story) - 1), other)
    if not beginning:
        story = story[1:]
    events = numbered("e", story)
    messages = told(events)
    assert [one["sequence"] for one in messages] == [event.sequence for event in events]
    assert {one["type"] for one in messages} <= KINDS
    assert [one["type"] for one in messages[:-1] if one["type"] in ("completion", "error")] == []
    # A fold that is begun again gives the same from any point on.
    place = int(cut * len(events))
    assert told(events)[place:] == messages[place:]
