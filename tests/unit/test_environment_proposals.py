"""Environment runs: when one is called for, what of an answer is taken, what counts as better."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from swe_ai_fleet.agents.preparation import read_proposal, selects
from swe_ai_fleet.domain.environment import EnvironmentProposal
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.domain.test_run import (
    Baseline,
    TestOutcome,
    TestResult,
    TestRun,
    gets_on_better,
    suite_baseline,
    wants_help,
)
from tests.tables import table

SOURCE = "e/environment"


def run(passed: int = 0, **failing: str) -> TestRun:
    """A run with so many passing tests, and failing ones with what they say; a name in capitals is a file."""
    results = {f"tests/test_a.py::test_{number}": TestResult(outcome=TestOutcome.PASSED) for number in range(passed)}
    for name, said in failing.items():
        where = f"tests/test_{name.lower()}.py" if name.isupper() else f"tests/test_a.py::{name}"
        results[where] = TestResult(outcome=TestOutcome.ERROR if name.isupper() else TestOutcome.FAILED, message=said)
    return TestRun(framework="pytest", command="pytest", results=results, exit_code=int(bool(failing)))


def baseline(*runs: TestRun) -> Baseline:
    return Baseline(commit="c", suites=tuple(map(suite_baseline, runs)))


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        pytest.param(run(3), False, id="all is well"),
        pytest.param(run(1, a="assert 1 == 2", b="assert 2 == 3"), False, id="tests fail on their own account"),
        pytest.param(run(3, X="No module named 'yaml'"), True, id="a module is missing"),
        pytest.param(run(0, a="fixture 'mocker' not found"), True, id="a plug-in is missing"),
        pytest.param(run(300, X="No module named 'torch'"), False, id="one file of many"),
        pytest.param(TestRun(framework="pytest", exit_code=4), True, id="the runner does not start"),
        pytest.param(TestRun(framework="pytest", stopped="the time limit of 600 s was reached"), True, id="it hangs"),
    ],
)
def test_an_environment_run_is_called_for_where_something_is_missing(found: TestRun, wanted: bool) -> None:
    assert wants_help(baseline(found)) is wanted


@table(
    ("before", "after", "better"),
    [
        (run(3, X="No module named 'yaml'"), run(9), True),
        (run(3, X="No module named 'yaml'"), run(3, a="assert 1 == 2"), True),
        (run(3, X="No module named 'yaml'"), run(3, X="No module named 'yaml'"), False),
        (run(3, a="assert 1", X="No module named 'yaml'"), run(4), False),
    ],
)
def test_better_means_more_tests_that_run_and_none_gone(before: TestRun, after: TestRun, better: bool) -> None:
    assert gets_on_better(baseline(before), baseline(after)) is better


def test_an_answer_is_read_whatever_stands_around_it() -> None:
    told = json.dumps({"setup": ["pip install yaml"], "test_command": "", "notes": "it is imported"})
    proposal = EnvironmentProposal(setup=("pip install yaml",), notes="it is imported", source=SOURCE)
    for text in (told, f"<think>{{}}</think>\n{told}", f"Here it is:\n```json\n{told}\n```"):
        assert read_proposal(text, source=SOURCE) == proposal
    for text, problem in (
        ("I could not find it.", "not a JSON object"), ('{"notes": "x"}', "not a JSON object"),
        ('{"setup": [], "notes": "nothing helps"}', "it proposes nothing: nothing helps"),
        (json.dumps({"setup": ["true"] * 21}), "more than 20 commands"),
        (json.dumps({"setup": ["true\nrm -rf /"]}), "one that is no line"),
        ('{"setup": [], "test_command": "pytest -k fast"}', "could decide which tests count"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=problem):
            read_proposal(text, source=SOURCE)
    # The caller's own commands come first, and its test command stands.
    amended = replace(proposal, test_command="pytest").amending(EnvironmentSpec(setup=("a",), test_command="tox"))
    assert amended == EnvironmentSpec(setup=("a", "pip install yaml"), test_command="tox")


def test_a_test_command_that_could_choose_among_tests_is_refused() -> None:
    choosing = (
        "true", "pytest --deselect tests/test_a.py::test_b", "pytest -p no:cacheprovider", "pytest tests && true",
        "pytest $(cat list)", "PYTEST_ADDOPTS=-x pytest", "make test CHECK=none", "npm test -- --grep=fast", "'pytest",
    )  # fmt: skip
    taken = ("pytest -q", "python -m unittest discover -v", "npm test", "go test ./...")
    assert [command for command in (*choosing, *taken) if not selects(command)] == list(taken)
