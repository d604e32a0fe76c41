"""JSON to messages and back: what HTTP clients write and read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.workflow.v1 import workflow_pb2 as workflow
from services.gateway.rest.binding import as_json, serialized
from services.gateway.rest.reading import fill, fill_text, parsed
from swe_ai_fleet.domain.errors import InvalidRequest

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


@st.composite
def runs(draw: st.DrawFn) -> workflow.RunWorkflowRequest:
    message = workflow.RunWorkflowRequest(task_id=draw(TEXT))
    json_format.ParseDict(draw(st.dictionaries(TEXT, FREE, max_size=3)), message.inputs)
    return message


def refused(message: Message, body: Any) -> str:
    """The field that a refusal names."""
    with pytest.raises(InvalidRequest) as refusal:
        fill(message, body)
    return refusal.value.field


@given(TASK | runs() | st.builds(pb.AuditHead, signature=st.binary(max_size=20)))
def test_what_is_written_can_be_read(message: Message) -> None:
    again = type(message)()
    fill(again, parsed(serialized(message)))
    assert again == message


@given(TASK)
def test_it_is_the_mapping_of_protobuf_but_for_large_integers(message: pb.DeliberateRequest) -> None:
    theirs = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for name in ("max_tokens", "total_max_tokens"):
        theirs["constraints"][name] = int(theirs["constraints"][name])
    assert as_json(message) == theirs


@given(st.dictionaries(st.sampled_from(list(pb.DeliberateRequest.DESCRIPTOR.fields_by_name)), FREE, max_size=4))
def test_values_of_any_type_are_taken_or_refused_by_name(body: dict[str, Any]) -> None:
    try:
        fill(pb.DeliberateRequest(), parsed(json.dumps(body).encode()))
    except InvalidRequest as refusal:
        assert refusal.field.split(".")[0].split("[")[0] in body
    assert len(refused(pb.DeliberateRequest(), {"x" * 100_000: 1})) < 100
    refused(pb.DeliberateRequest(), {"\ud800": 1}).encode()


def test_a_query() -> None:
    message = pb.ListExecutionsRequest()
    statuses = [pb.DELIBERATION_STATUS_FAILED, pb.DELIBERATION_STATUS_TIMEOUT]
    given = [("statuses", pb.DeliberationStatus.Name(one)) for one in statuses]
    fill_text(message, [*given, ("created_after_ms", "17")])
    assert message == pb.ListExecutionsRequest(statuses=statuses, created_after_ms=17)
    nested = pb.OrchestrateRequest()
    fill_text(nested, [("options.enable_peer_review", "true"), ("constraints.max_cost", "1.5e0")])
    assert (nested.options.enable_peer_review, nested.constraints.max_cost) == (True, 1.5)
    for name, text in (
        ("options.enable_peer_review", "True"),
        ("constraints.max_cost", "nan"),
        ("constraints.max_cost", "1e999"),
        ("constraints.max_tokens", "\N{FULLWIDTH DIGIT ONE}"),
        ("constraints.max_tokens", "9" * 5_000),
        ("constraints.checks.name", "x"),
        ("constraints.metadata", "x"),
        ("constraints", "x"),
        ("options..num_agents", "1"),
        ("", "1"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            fill_text(pb.OrchestrateRequest(), [(name, text)])
        assert refusal.value.field == (name or '""')
