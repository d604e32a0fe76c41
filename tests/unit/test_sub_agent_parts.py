"""What sub-agents say as it is read, what they may spend, and what of a plan session is plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.plan_session.outcomes import PlanOutcome
from swe_ai_fleet.agents.plan_session.proposals import opens_with_proposal
from swe_ai_fleet.agents.plan_session.session import PlanSession, SessionStatus
from swe_ai_fleet.agents.sub_agents.limits import Allowance, SubAgentLimits
from swe_ai_fleet.agents.sub_agents.shapes import (
    MAX_ITEMS,
    MAX_TEXT_CHARS,
    OutputShape,
    PlanShape,
    ResearchShape,
    ScheduleShape,
    Shape,
    VerdictShape,
    objects_in,
    read,
    schema_of,
)
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.budget import Limits, Prices, Usage
from swe_ai_fleet.domain.goal import goal_type
from swe_ai_fleet.domain.message import AssistantMessage, ToolCall, ToolMessage, UserMessage
from swe_ai_fleet.tools.failure import ToolRefusal

SHAPES: tuple[type[Shape], ...] = (PlanShape, VerdictShape, ScheduleShape, OutputShape, ResearchShape)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


class TestShapes:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_schemas_are_ones_that_servers_can_hold_a_reply_to(self, shape: type[Shape]) -> None:
        def closed(schema: object) -> bool:
            if isinstance(schema, list):
                return all(closed(part) for part in cast("list[object]", schema))
            if not isinstance(schema, Mapping):
                return True
            fields = cast("Mapping[str, Any]", schema)
            if "properties" in fields and (
                fields["additionalProperties"] is not False or fields["required"] != list(fields["properties"])
            ):
                return False
            return "default" not in fields and all(closed(part) for part in fields.values())

        schema = schema_of(shape)
        assert schema["type"] == "object"
        assert closed(schema)

    @given(st.sampled_from(SHAPES), st.text(max_size=200) | JSON)
    def test_whatever_comes_is_read_or_refused_with_a_reason(self, shape: type[Shape], said: object) -> None:
        try:
            found = read(shape, said)
        except ValueError as error:
            assert str(error)
        else:
            assert isinstance(found, shape)

    @given(st.sampled_from(SHAPES), st.dictionaries(st.sampled_from(["plan", "output", "steps", "summary"]), JSON))
    def test_fields_of_any_type_are_read_or_refused(self, shape: type[Shape], said: dict[str, object]) -> None:
        try:
            found = read(shape, json.dumps(said))
        except ValueError as error:
            assert str(error)
        else:
            for value in found.model_dump().values():
                assert len(value) <= (MAX_TEXT_CHARS if isinstance(value, str) else MAX_ITEMS)

    @given(st.text(alphabet="ab \n`", max_size=40), st.text(alphabet="ab \n`", max_size=40))
    def test_an_object_is_found_between_other_text(self, before: str, after: str) -> None:
        said = before + json.dumps({"output": "x {y"}) + after
        assert read(OutputShape, said).output == "x {y"

    @pytest.mark.parametrize("text", ["{" * 100_000, '{"a": ' * 50_000, "[" * 100_000, '{"plan": ' + "[" * 100_000])
    def test_hostile_nesting_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="no JSON object"):
            read(PlanShape, text)

    @pytest.mark.parametrize(
        ("value", "expected"), [("Yes.", True), ("infeasible", False), (1, True), ("true", True), (False, False)]
    )
    def test_a_verdict_in_words(self, value: object, expected: bool) -> None:
        assert read(VerdictShape, {"is_feasible": value, "feedback": "f"}).is_feasible is expected

    def test_a_verdict_that_is_none_is_no_verdict(self) -> None:
        with pytest.raises(ValueError, match="is_feasible"):
            read(VerdictShape, {"is_feasible": "perhaps", "feedback": "f"})

    def test_answers_under_their_gaps(self) -> None:
        found = read(ResearchShape, {"summary": "s", "answers": {"a": "one", "b": {"gap": "b", "answer": ""}}})
        assert [(answer.gap, answer.answer) for answer in found.answers] == [("a", "one"), ("b", "")]

    def test_the_second_candidate_counts_where_the_first_is_of_no_use(self) -> None:
        assert read(OutputShape, "prose", {"result": {"output": "o"}}).output == "o"
        assert list(objects_in(3)) == []


class TestAllowance:
    @given(st.integers(0, 5_000), st.integers(0, 20), st.floats(0, 10), st.integers(0, 4_000), st.integers(0, 20))
    def test_a_child_gets_at_most_half_of_what_is_left(
        self, tokens: int, calls: int, cost: float, spent: int, called: int
    ) -> None:
        parent = Budget(Limits(max_tokens=tokens, max_tool_calls=calls, max_cost=cost), prices=Prices(prompt=1.0))
        parent.settle(Usage(prompt_tokens=spent, tool_calls=called))
        left, cost_left, calls_left = parent.tokens_left, parent.cost_left, parent.tool_calls_left
        try:
            with Allowance(SubAgentLimits()).grant("x", parent) as child:
                assert child.limits.max_tool_calls <= calls_left / 2
                if left is not None:
                    assert 0 < child.limits.max_tokens <= left / 2
                if cost_left:
                    assert 0 < child.limits.max_cost <= max(cost_left / 2, 1e-9)
        except ToolRefusal:
            assert left is not None
            assert left < 512
        assert (parent.tokens_left, parent.tool_calls_left) == (left, calls_left)

    def test_a_number_for_all_levels(self) -> None:
        allowance, budget = Allowance(SubAgentLimits(number=2)), Budget(Limits())
        with allowance.grant("outer", budget) as child, allowance.grant("inner", child, max_iterations=3) as grandchild:
            assert grandchild.limits.max_iterations == 3
            assert grandchild.limits.timeout_seconds <= child.limits.timeout_seconds / 2
        with (
            pytest.raises(ToolRefusal, match="third was not started: this run had its 2"),
            allowance.grant("third", budget),
        ):
            pytest.fail("there may be no third")


class TestProposals:
    @pytest.mark.parametrize(
        "text",
        [
            "I propose X",
            "**I'd** do X",
            "> Proposal: X",
            "# My plan\nX",
            "1. First",
            "Here\u2019s how I would",
            "Approach: X",
        ],
    )
    def test_openings_of_proposals(self, text: str) -> None:
        assert opens_with_proposal(text)

    @pytest.mark.parametrize("text", ["", "Let me look first.", "What do you mean?", "Reading the file now: 1. a"])
    def test_other_openings(self, text: str) -> None:
        assert not opens_with_proposal(text)

    @given(st.text(max_size=600))
    def test_any_text_is_one_or_not(self, text: str) -> None:
        assert opens_with_proposal(text) in (True, False)


class TestSession:
    def session(self) -> PlanSession:
        calls = tuple(ToolCall(call_id=f"c{n}", model_call_id=f"m{n}", name="x", arguments="{}") for n in range(2))
        messages = (
            UserMessage(content="go"),
            AssistantMessage(tool_calls=calls),
            ToolMessage(call_id="c0", content="done"),
        )
        return PlanSession(session_id="s", goal="Fix the login", messages=messages, proposals=2, revision=4)

    def test_closing_answers_what_is_open(self) -> None:
        session = self.session()
        closed = session.closed("over")
        assert (session.waits, closed.waits) == (True, False)
        assert closed.messages[-1] == ToolMessage(call_id="c1", content="Error: over")
        assert closed.closed("again") == closed

    def test_another_goal_keeps_conversation_and_revision(self) -> None:
        after = self.session().followed_by(PlanSession(session_id="other", goal="Next", selected_entities=("a",)))
        assert (after.goal, after.revision, after.status, after.proposals) == ("Next", 4, SessionStatus.PLANNING, 0)
        assert (after.session_id, after.selected_entities) == (self.session().session_id, ("a",))
        assert after.messages[:3] == self.session().messages
        assert from_json(PlanSession, to_json(after)) == after

    @pytest.mark.parametrize(("status", "ratio"), [(SessionStatus.COMPLETED, 0.5), (SessionStatus.REJECTED, 0.0)])
    def test_what_is_learned_from_it(self, status: SessionStatus, ratio: float) -> None:
        from dataclasses import replace

        outcome = PlanOutcome.of(replace(self.session(), status=status))
        assert (outcome.goal_type, outcome.approach_ratio, outcome.rating) == ("fix", ratio, None)

    @pytest.mark.parametrize(
        ("goal", "kind"),
        [
            ("Add tests for billing", "build"), ("The build crashes!", "fix"), ("why is it slow?", "investigate"),
            ("Update the README", "change"), ("Rename total()", "refactor"), ("Tests for x", "test"), ("", "other"),
        ],
    )  # fmt: skip
    def test_kinds_of_goals(self, goal: str, kind: str) -> None:
        assert goal_type(goal) == kind
