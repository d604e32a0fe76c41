"""What HTTP clients write and read: JSON of messages, and one message for each stored event."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.message import Message
from httpx2 import ASGITransport, AsyncClient, Response
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.access.credentials import CredentialChecker
from services.gateway.main import gateway_app
from services.gateway.streams.messages import Messages
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.review import VerifierScore
from swe_ai_fleet.domain.subtask import SubtaskOutcome
from swe_ai_fleet.domain.workflow import NodeStatus
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.event_source import a_deliberation, numbered
from tests.gateway_house import BEARER, TOKEN
from tests.sampling import sample
from tests.tables import table

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
REAL = st.floats(allow_nan=False, allow_infinity=False)
FREE = st.recursive(
    st.none() | st.booleans() | REAL | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
TASK = st.builds(
    pb.DeliberateRequest,
    task_id=TEXT,
    rounds=st.integers(-(2**31), 2**31 - 1),
    repo=st.builds(pb.RepoRef, url=TEXT, ref=TEXT) | st.builds(pb.RepoRef, path=TEXT, commit=TEXT),
    approval=st.sampled_from(pb.ApprovalPolicy.values()),
    enable_tools=st.booleans(),
    tools=st.lists(TEXT, max_size=3),
    constraints=st.builds(
        pb.TaskConstraints,
        max_tokens=st.integers(-(2**63), 2**63 - 1),
        max_cost=REAL,
        metadata=st.dictionaries(TEXT, TEXT, max_size=3),
        checks=st.lists(st.builds(pb.CheckSpec, name=TEXT, required=st.booleans()), max_size=2),
    ),
)


@dataclass(kw_only=True)
class Behind:
    """What the gateway calls: it keeps what it was asked last, and answers what it is told to."""

    asked: Any = None
    answer: Message = field(default_factory=pb.SubmitTaskResponse)

    async def call(self, target: object, request: Message, caller: object, *, seconds: float = 0) -> Message:
        self.asked = request
        return self.answer


async def _ready() -> bool:
    return True


@cache
def gateway() -> tuple[Behind, AsyncClient]:
    behind = Behind()
    own = Settings(http_hosts="gateway", http_requests_per_minute=1_000_000)
    app = gateway_app(own, cast("Any", behind), CredentialChecker(TOKEN), MemoryKeyValue(), _ready)
    return behind, AsyncClient(transport=ASGITransport(app), base_url="http://gateway", headers=BEARER)


def refused(answer: Response) -> str:
    """The field that a refusal names."""
    assert answer.status_code == 400, answer.text
    return answer.json()["field"]


@settings(max_examples=15)
@given(TASK)
async def test_json_is_the_mapping_of_protobuf_but_for_large_integers_and_can_be_sent_back(
    message: pb.DeliberateRequest,
) -> None:
    behind, client = gateway()
    theirs = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for name in ("max_tokens", "total_max_tokens"):
        theirs["constraints"][name] = int(theirs["constraints"][name])
    behind.answer = message
    written = (await client.get("/api/executions")).json()
    assert written == theirs
    behind.answer = pb.SubmitTaskResponse()
    assert (await client.post("/api/executions", json={"deliberate": written})).status_code == 202
    assert behind.asked.deliberate == message


@settings(max_examples=15)
@given(st.dictionaries(st.sampled_from(list(pb.DeliberateRequest.DESCRIPTOR.fields_by_name)), FREE, max_size=4))
async def test_values_of_any_type_are_taken_or_refused_by_name(body: dict[str, Any]) -> None:
    behind, client = gateway()
    behind.answer = pb.SubmitTaskResponse()
    answer = await client.post("/api/executions", json={"deliberate": body})
    assert answer.status_code == 202 or refused(answer).split(".")[1].split("[")[0] in body


async def test_a_name_that_is_none_and_what_a_query_may_say() -> None:
    behind, client = gateway()
    assert len(refused(await client.post("/api/executions", json={"x" * 100_000: 1}))) < 100
    half = {"content": '{"\\ud800": 1}', "headers": {"content-type": "application/json"}}
    refused(await client.post("/api/executions", **half)).encode()
    statuses = [pb.DELIBERATION_STATUS_FAILED, pb.DELIBERATION_STATUS_TIMEOUT]
    query = {"statuses": [pb.DeliberationStatus.Name(one) for one in statuses], "created_after_ms": "17"}
    behind.answer = pb.ListExecutionsResponse()
    assert (await client.get("/api/executions", params=query)).status_code == 200
    assert behind.asked == pb.ListExecutionsRequest(statuses=statuses, created_after_ms=17)
    for name, text in (
        ("statuses", "LATE"),
        ("created_after_ms", "\N{FULLWIDTH DIGIT ONE}"),
        ("created_after_ms", "9" * 5_000),
        ("statuses.x", "x"),
        ("", "1"),
    ):
        assert refused(await client.get("/api/executions", params={name: text})) == (name or '""'), (name, text)


Told = tuple[str, ev.EventBody]
KINDS = {"status", "node_update", "log", "completion", "error"}
OTHERS: tuple[Told, ...] = (
    ("agent-dev-1", ev.ApprovalRequested(request=sample(ApprovalRequest, approval_id="a-1"))),
    ("_", ev.ApprovalResolved(resolution=ApprovalResolution(approval_id="a-1", decision=ApprovalDecision.APPROVED))),
    ("~", ev.CancelRequested(reason="enough")),
    ("_", ev.RunLost(lost_agent_id="agent-dev-2", reason="its process died")),
    ("_", ev.NodeUpdated(node_id="n[0]", status=NodeStatus.COMPLETED, output='{"a": 1}')),
    ("_", ev.SubtaskEnded(outcome=SubtaskOutcome(subtask_id="s-1", status="failed", error="e"))),
    ("agent-dev-1", ev.LoopNoticed(step=2, pattern="same call", advice="try another")),
    ("_", ev.CandidateScored(score=VerifierScore(candidate_id="agent-dev-1", raw=0.8, score=0.7, outcomes=30))),
)


def told(events: Sequence[pb.ExecutionEvent], *, whole: bool = False) -> list[dict[str, Any]]:
    fold = Messages()
    return [json.loads(fold.of(event).body(whole)) for event in events]


def test_a_deliberation_is_told_from_its_start_through_its_agents_to_its_end() -> None:
    hostile = ev.LoopNoticed(step=1, pattern="\x1b]0;title\x07<script>\u202e", advice="a\nb")
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
