"""What sub-agents say as it is read, what they may spend, and what of a plan session is plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.sub_agents import SubAgentLimits
from swe_ai_fleet.agents.sub_agents.limits import Allowance
from swe_ai_fleet.agents.sub_agents.shapes import (
    OutputShape,
    PlanShape,
    ResearchShape,
    ScheduleShape,
    Shape,
    VerdictShape,
    read,
    schema_of,
)
from swe_ai_fleet.domain.budget import Limits, Prices, Usage
from swe_ai_fleet.tools import ToolRefusal

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

    @pytest.mark.parametrize(
        "text",
        [
            'Sure!\n```json\n{"plan": ["one", "two"], "reasoning": "r"}\n```',
            '{"answer": {"plan": "- one\\n- two", "reasoning": "r"}}',
            '{"plan": {"1": "one", "2": "two"}, "reasoning": ["r"]}',
            '{"result": "{\\"plan\\": [\\"one\\", \\"two\\"], \\"reasoning\\": \\"r\\"}"}',
            '{broken {"plan": ["one", "two"], "reasoning": "r", "mood": 3} and so on',
        ],
    )
    def test_answers_are_read_loosely(self, text: str) -> None:
        plan = read(PlanShape, text)
        assert [step.removeprefix("1: ").removeprefix("2: ") for step in plan.plan] == ["one", "two"]
        assert plan.reasoning == "r"

    @pytest.mark.parametrize("text", ["{" * 100_000, '{"a": ' * 50_000, "[" * 100_000, '{"plan": ' + "[" * 100_000])
    def test_hostile_nesting_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="no JSON object"):
            read(PlanShape, text)

    @pytest.mark.parametrize(
        ("value", "expected"), [("Yes.", True), ("infeasible", False), (1, True), ("true", True), (False, False)]
    )
    def test_a_verdict_in_words(self, value: object, expected: bool) -> None:
        assert read(VerdictShape, {"is_feasible": value, "feedback": "f"}).is_feasible is expected


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
