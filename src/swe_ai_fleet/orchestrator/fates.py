"""What became of the candidates that do not stand."""

from __future__ import annotations

from swe_ai_fleet.domain.execution import ExecutionState

REVISED = "a revision took its place: "


def fates(state: ExecutionState) -> dict[str, str]:
    """By its id, why a candidate does not stand: it was dropped, or revised. Those that do stand are not in it."""
    replaced = {
        one.revises: f"{REVISED}{one.candidate_id}"
        for one in state.candidates.values()
        if one.revises and one.candidate_id in state.judged and one.candidate_id not in state.dropped
    }
    return {**replaced, **state.dropped}
