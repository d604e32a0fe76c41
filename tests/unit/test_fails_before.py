"""Whether an agent's own test runs show its change."""

from __future__ import annotations

from collections.abc import Sequence

from swe_ai_fleet.agents.results import fails_before
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.message import AssistantMessage
from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import Observation, Step
from tests.tables import table

OLD = TestRun(results={"a": TestResult(outcome=TestOutcome.PASSED), "b": TestResult(outcome=TestOutcome.FAILED)})


def step(passed: int, failing: Sequence[str]) -> Step:
    tests = {"passed": passed, "failed": len(failing), "failing": [{"id": test} for test in failing]}
    seen = Observation(call_id="c", result=ToolResult(success=True, operation="tests_run", metadata={"tests": tests}))
    return Step(number=1, reply=AssistantMessage(), observations=(seen,), usage=Usage())


@table(
    ("runs", "baseline", "shown"),
    [
        ([], OLD, False),
        ([(2, [])], None, False),
        ([(1, ["b"]), (2, [])], None, True),
        ([(2, [])], OLD, True),
        ([(1, ["b"])], OLD, False),
        ([(1, [])], OLD, False),  # not all of them ran
    ],
)
def test_a_test_that_failed_and_does_not_any_more_shows_a_change(
    runs: Sequence[tuple[int, Sequence[str]]], baseline: TestRun | None, shown: bool
) -> None:
    assert fails_before([step(*run) for run in runs], baseline) is shown
