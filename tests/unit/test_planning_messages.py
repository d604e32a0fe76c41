"""Plan sessions on the wire: whatever a model, a memory or a page wrote can be sent."""

from __future__ import annotations

from google.protobuf.json_format import MessageToJson, Parse
from hypothesis import given
from hypothesis import strategies as st

from fleet.planning.v1 import planning_pb2 as pb
from services.orchestrator.planning_messages import (
    MAX_CALLS_BYTES,
    card_message,
    decision_message,
    proposal_message,
    result_message,
    session_message,
)
from swe_ai_fleet.agents.plan_session import (
    Approved,
    AwaitingApproval,
    PlanFailed,
    PlanResult,
    PlanSession,
    Rejected,
    Research,
    SessionStatus,
    ToolCallMade,
)
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.message import AssistantMessage, ToolCall
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import Observation, Step, StopReason

ANY = st.text(alphabet=st.characters(exclude_categories=()), max_size=40)


def whole(text: str) -> PlanSession:
    call = ToolCall(call_id="c", model_call_id="c", name=text, arguments=text)
    seen = Observation(call_id="c", result=ToolResult(success=True, operation="x", content=text))
    return PlanSession(
        session_id="s1",
        goal=text,
        status=SessionStatus.COMPLETED,
        memory=MemoryResults(content=text, gaps=(text,), sources=(text,)),
        research=Research(summary=text, sources=(text,), data_points=(text,), error=text),
        approach=text,
        reasoning=text,
        answer=text,
        error=text,
        steps=(Step(number=1, reply=AssistantMessage(tool_calls=(call,)), observations=(seen,), usage=Usage()),),
        stop_reason=StopReason.FINAL_ANSWER,
        started_at="2026-11-22T12:00:00+00:00",
        updated_at="2026-11-22T12:00:01+00:00",
        repository=text,
    )


@given(ANY)
def test_any_text_survives_the_wire_and_json(text: str) -> None:
    session = whole(text)
    for message in (
        proposal_message(AwaitingApproval.of(session)),
        proposal_message(PlanFailed(session_id="s1", error=text)),
        decision_message(AwaitingApproval.of(session)),
        decision_message(Rejected(session_id="s1", message=text)),
        result_message(PlanResult.of(session, "completed", str)),
        session_message(session, str, working=False),
        card_message(session.card),
    ):
        again = type(message).FromString(message.SerializeToString())
        assert again == message
        assert Parse(MessageToJson(message), type(message)()) == message


def test_research_is_absent_where_there_was_none() -> None:
    without = proposal_message(AwaitingApproval.of(PlanSession(session_id="s1", goal="g")))
    assert without.HasField("memory_results")
    assert not without.memory_results.HasField("research")
    assert proposal_message(AwaitingApproval.of(whole("x"))).memory_results.research.summary == "x"


def test_what_a_decision_came_to_is_a_word() -> None:
    answers = (
        Approved(session_id="s1"),
        Rejected(session_id="s1", message="no"),
        AwaitingApproval.of(whole("x")),
        PlanFailed(session_id="s1", error="away"),
    )
    told = [decision_message(answer) for answer in answers]
    assert [one.status for one in told] == ["approved", "rejected", "awaiting_approval", "error"]
    assert [bool(one.message) for one in told] == [True, True, True, False]
    assert (told[2].approach, told[3].error) == ("x", "away")


def test_times_are_milliseconds_and_unset_ones_zero() -> None:
    told = card_message(whole("x").card)
    assert told.updated_at_ms - told.started_at_ms == 1_000
    assert card_message(PlanSession(session_id="s1", goal="g").card).started_at_ms == 0


def test_of_very_many_calls_the_last_ones_are_told() -> None:
    calls = tuple(
        ToolCallMade(step=n, tool="t", arguments="a" * 1_000, success=True, outcome="success", result="r" * 500)
        for n in range(1, 3_001)
    )
    result = PlanResult(
        status="completed", session_id="s1", goal="g", final_plan="p", results="r", tool_calls_made=calls
    )
    told = result_message(result)
    assert told.ByteSize() <= MAX_CALLS_BYTES + 100_000
    assert told.tool_calls_made[-1].step == 3_000
    steps = [made.step for made in told.tool_calls_made]
    assert steps == list(range(steps[0], 3_001))
    assert isinstance(told, pb.ContinuePlanResponse)
