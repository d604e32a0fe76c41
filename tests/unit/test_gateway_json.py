"""JSON to messages and back: what HTTP clients write and read."""

from __future__ import annotations

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
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.gateway_house import BEARER, TOKEN

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
