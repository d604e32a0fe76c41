"""Plan sessions as messages of the contract: what was sent is sent the same, and what is sent comes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from google.protobuf import json_format
from google.protobuf.message import Message

from fleet.planning.v1 import planning_pb2
from swe_ai_fleet.contract import from_message, to_message
from swe_ai_fleet.extensions.plans import service
from swe_ai_fleet.extensions.plans.requests import AwaitingApproval, PlanResult
from swe_ai_fleet.extensions.plans.session import PlanSession, SessionCard
from tests.sampling import sample
from tests.tables import table
from tests.unit.test_contract import missing

GOLDEN = Path(__file__).with_name("golden_plan_wire.json")
MEMORY = {"coverage": 1.5, "content": "c", "gaps": ["g"], "sources": ["s"]}
RESEARCH = {"summary": "s", "sources": ["x"], "data_points": ["d"], "coverage": 2.0, "error": "e"}
PROPOSAL = sample(
    AwaitingApproval, memory_results={**MEMORY, "research": RESEARCH}, question="", status="awaiting_approval"
)
SENT: Mapping[str, Callable[[], Message]] = {
    "proposal": lambda: service.proposal_message(PROPOSAL),
    "plan_decision": lambda: service.decision_message(PROPOSAL),
    "plan_result": lambda: service.result_message(sample(PlanResult)),
    "plan_session": lambda: service.session_message(sample(PlanSession), str, working=True),
    "plan_card": lambda: service.card_message(sample(SessionCard)),
}


@table("name", SENT)
def test_what_was_sent_of_plans_before_is_sent_the_same(name: str) -> None:
    """`golden_plan_wire.json` was written by converters that named each field by hand (November 2026)."""
    now = json_format.MessageToDict(SENT[name](), preserving_proto_field_name=True)
    assert not missing(json.loads(GOLDEN.read_text())[name], now)


def test_every_field_of_a_call_comes_back() -> None:
    made = sample(PlanResult).tool_calls_made[0]
    assert from_message(type(made), to_message(planning_pb2.ToolCallMade, made)) == made
