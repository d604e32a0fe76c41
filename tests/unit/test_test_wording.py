"""What an agent reads of a test run where it is known what the untouched commit's tests say."""

from __future__ import annotations

from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.tools.tests.runners.wording import told


def run(**outcomes: TestOutcome) -> TestRun:
    results = {
        f"t.py::{name}": TestResult(outcome=outcome, message=f"{name} says why") for name, outcome in outcomes.items()
    }
    failed = any(outcome.bad for outcome in outcomes.values())
    return TestRun(framework="pytest", command="pytest", results=results, exit_code=int(failed))


def test_what_is_said_beside_the_untouched_commit() -> None:
    before = {"t.py::old"}
    result = told("tests_run", run(old=TestOutcome.FAILED, new=TestOutcome.FAILED), failed_before=before)
    said = result.observation()
    assert not result.success and "1 of 2 tests did not pass" in said
    assert "new says why" in said and "old says why" not in said
    assert "1 test failed on the untouched commit already." in said
    alone = told("tests_run", run(old=TestOutcome.FAILED), failed_before=before).observation()
    assert "the 1 test that fail failed on the untouched commit already" in alone
    fixed = told("tests_run", run(old=TestOutcome.PASSED), failed_before=before)
    assert fixed.success and "failed on the untouched commit and pass now:\nt.py::old" in fixed.content
    # Before the baseline is known each failure is told.
    unknown = told("tests_run", run(old=TestOutcome.FAILED)).observation()
    assert "old says why" in unknown and "untouched" not in unknown
