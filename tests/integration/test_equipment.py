"""What candidates may spend together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.budget import Totals
from swe_ai_fleet.domain.task import Limits


@given(
    st.integers(1, 300),
    st.builds(Limits, max_tokens=st.integers(0, 10**6), max_tool_calls=st.integers(1, 500), max_cost=st.floats(0, 100)),
    st.builds(
        Totals, max_tokens=st.integers(300, 10**6), max_tool_calls=st.integers(300, 10**5), max_cost=st.floats(0.1, 100)
    ),
)
def test_candidates_together_stay_within_the_task(parts: int, own: Limits, totals: Totals) -> None:
    share = totals.share(own, parts=parts)
    assert 1 <= share.max_tokens * parts <= totals.max_tokens
    assert 1 <= share.max_tool_calls * parts <= totals.max_tool_calls
    assert 0 < share.max_cost * parts <= totals.max_cost * 1.000001
    assert share.max_tool_calls <= own.max_tool_calls
    assert not own.max_tokens or share.max_tokens <= own.max_tokens
