"""The users' example of planning with approval (C6 to C9), a program of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import FleetUnderTest
from tests.contract.example_program import printed, run_example
from tests.fleet_command import Shell
from tests.plan_script import PLAN_GOAL


@pytest.mark.slow
async def test_c6_to_c9_a_plan_over_http(fleet: FleetUnderTest, shell: Shell, tmp_path: Path) -> None:
    """Quick counterparts: extensions/plans/test_planning_service.py."""
    ran = await run_example("c6_plan_over_http", fleet.running.http, fleet.running.token, directory=tmp_path)
    proposal, adjusted, approved, result, other, rejected = map(json.loads, printed(ran).splitlines())
    assert {name: proposal[name] for name in ("status", "goal", "approach")} == {
        "status": "awaiting_approval", "goal": PLAN_GOAL, "approach": "Add them up.",
    }  # fmt: skip
    # Without selected entities there is no coverage: nothing is known of it.
    assert {"content", "gaps", "sources"} <= proposal["memory_results"].keys()
    assert (adjusted["status"], adjusted["approach"]) == ("awaiting_approval", "Add them up, twice.")
    assert (approved["status"], result["status"], result["results"]) == ("approved", "completed", "They come to 25.")
    assert result["final_plan"] == "Add them up, twice."
    assert [call["tool"] for call in result["tool_calls_made"]][-3:] == [
        "calculator", "python_executor", "final_answer",
    ]  # fmt: skip
    assert (other["status"], rejected["status"]) == ("awaiting_approval", "rejected")
    assert "not today" in rejected["message"]
    # Each is logged for later recommendations, by these names.
    rating = await shell.fleet("rate", proposal["session_id"], "5", "--json")
    assert rating.code == 0, rating.out + rating.err
    rated = rating.document
    assert (rated["goal_type"], rated["approach_ratio"], rated["agents_used"], rated["rating"]) == (
        "investigate", 0.5, [], 5,
    )  # fmt: skip
    assert (rated["memory_share"], rated["tool_share"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
