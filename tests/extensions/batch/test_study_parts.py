"""What a study counts, and how sure it is; how a batch tries patches with hidden tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.extensions.batch.records import Hidden
from swe_ai_fleet.extensions.batch.report import wilson
from swe_ai_fleet.extensions.batch.results import ERROR, Row
from swe_ai_fleet.extensions.batch.study_report import (
    Detail,
    Part,
    Standing,
    Trial,
    Variant,
    arms,
    detail_of,
    keep_details,
    markdown,
    read_details,
)
from swe_ai_fleet.extensions.batch.verification import commands, without_files_of


def test_wilsons_interval_is_that_of_the_tables():
    # Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998), table I.
    for passed, of, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)]:
        rate = wilson(passed, of)
        assert (rate.low, rate.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert wilson(1, 29).low == pytest.approx(0.0061, abs=1e-4)
    assert str(wilson(0, 0)) == "-"
    assert str(wilson(1, 2)) == "50% (1/2, 9% to 91%)"


@given(st.integers(0, 500), st.integers(0, 500))
def test_an_interval_holds_its_rate_and_mirrors(passed: int, failed: int):
    rate, other = wilson(passed, passed + failed), wilson(failed, passed + failed)
    assert 0 <= rate.low <= rate.value <= rate.high <= 1 or not rate.of
    assert rate.low == pytest.approx(1 - other.high, abs=1e-9)


def trial(candidates: int, name: str, *, status: str = "completed", repeat: int = 1, **changes: object) -> Trial:
    row = Row(instance_id=name, task_id=name, status=status, execution_id=f"{name}-{candidates}-{repeat}")
    return Trial(variant=Variant(candidates=candidates), repeat=repeat, row=replace(row, **changes))  # pyright: ignore[reportArgumentType]


def test_arms_are_compared_with_the_fewest_candidates():
    trials = [
        replace(trial(3, "b", status="no_winner"), variant=Variant(candidates=3, without=Part.REVIEWS)),
        trial(3, "a", tokens=300, cost=0.3, seconds=4, verdict="verified"),
        trial(3, "b", tokens=300, cost=0.3, seconds=2, verdict="unverified"),
        trial(3, "c", status="no_winner", tokens=300, cost=0.6, seconds=6),
        trial(1, "a", status="no_winner", tokens=100, seconds=1),
        trial(1, "b", tokens=100, seconds=2),
        trial(1, "c", status=ERROR),
    ]
    one, three, reduced = arms(trials)
    assert (reduced.candidates, reduced.without, reduced.lost) == (3, "reviews", 1)
    assert "| 3 without reviews |" in markdown("s", [reduced], missing=0)
    assert (one.candidates, one.passed.passed, one.passed.of) == (1, 1, 2)
    assert (three.passed.passed, three.passed.of, three.gained, three.lost) == (2, 3, 1, 0)
    assert (three.verified.passed, three.verified.of, one.verified.passed) == (1, 3, 0)
    assert three.cost_per_pass == pytest.approx(0.6)
    assert three.tokens_per_pass == 450
    assert (three.seconds, three.median_seconds) == (4, 4)
    assert one.cost_per_pass == 0
    assert arms([trial(1, "c", status=ERROR)]) == ()


def test_hidden_tests_decide_where_they_were_run_and_without_a_pass_there_is_no_price_of_one():
    one, three = arms([trial(1, "a", resolved=True), trial(3, "a", resolved=False), trial(3, "b", resolved=None)])
    assert one.resolved and three.resolved and one.resolved.passed == 1
    assert (three.resolved.passed, three.resolved.of, three.gained, three.lost) == (0, 1, 0, 1)
    [arm] = arms([trial(1, "a", status="no_winner", tokens=7)])
    assert (arm.tokens_per_pass, arm.resolved) == (None, None)
    told = markdown("s", [arm], missing=2)
    assert "| 1 | 0% (0/1, 0% to 79%) | 0% (0/1, 0% to 79%) | - |" in told and "2 trials are missing" in told


def test_rounds_are_compared_over_the_same_executions():
    def detailed(name: str, *counts: tuple[int, int]) -> Trial:
        found = tuple(Standing(round=n, passed=p, candidates=c) for n, (p, c) in enumerate(counts))
        return replace(trial(3, name), detail=Detail(execution_id=name, model_calls=4, tool_calls=1, standings=found))

    # The second had nothing to revise: it stands after the first round as it was drafted.
    [arm] = arms([detailed("a", (1, 3), (2, 3)), detailed("b", (3, 3)), detailed("c"), trial(3, "d")])
    assert [(number, rate.passed, rate.of) for number, rate in arm.rounds] == [(0, 4, 6), (1, 5, 6)]
    assert arm.model_calls == 4


def test_a_revision_stands_for_its_author_unless_it_was_dropped():
    def candidate(name: str, revision: int = 0, author: str = "") -> Candidate:
        return Candidate(
            candidate_id=name, agent_id=name, author_id=author, round=revision, role=Role.DEV, summary="",
            stop_reason=StopReason.FINAL_ANSWER, artifacts=Artifacts(), usage=Usage(), audit_head="", submitted_at="",
        )  # fmt: skip

    def report(name: str) -> CheckReport:
        result = CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=name in ("b", "a-r1"))
        return CheckReport(candidate_id=name, results=(result,))

    every = (candidate("a"), candidate("b"), candidate("a-r1", 1, "a"), candidate("b-r1", 1, "b"))
    state = ExecutionState(
        execution_id="e", fingerprint="f", started_at="", updated_at="", status=ExecutionStatus.COMPLETED,
        task=Task(task_id="t", kind=TaskKind.DELIBERATE, description="d", repo=RepoRef(location="/srv/app")),
        repository=PinnedRepository(tenant="default", location="/srv/app", commit="c" * 40),
        usage=Usage(model_calls=9, tool_calls=5), candidates={one.candidate_id: one for one in every},
        reports={one.candidate_id: report(one.candidate_id) for one in every}, dropped={"b-r1": "worse"},
    )  # fmt: skip
    stood = (Standing(round=0, candidates=2, passed=1), Standing(round=1, candidates=2, passed=2))
    assert detail_of(state) == Detail(execution_id="e", model_calls=9, tool_calls=5, standings=stood)
    assert detail_of(replace(state, candidates={})).standings == (Standing(round=0, candidates=0, passed=0),)


def test_details_survive_a_line_that_was_cut_off(tmp_path: Path):
    path = tmp_path / "details.jsonl"
    assert read_details(path) == {}
    stood = (Standing(round=0, candidates=1, passed=1),)
    first = Detail(execution_id="1", model_calls=1, tool_calls=0, standings=stood)
    keep_details(path, [first])
    with path.open("a") as file:
        file.write('{"execution_id": "2", "mod')
    keep_details(path, [replace(first, execution_id="3")])
    assert read_details(path) == {"1": first, "3": replace(first, execution_id="3")}


def test_hidden_tests_are_run_by_name_and_what_a_patch_did_to_them_does_not_count() -> None:
    mine = "diff --git a/app.py b/app.py\n+x\n"
    tests = "diff --git a/tests/t.py b/tests/t.py\n+assert True\n"
    later = "diff --git a/z.py b/z.py\n+\x0cdiff --git a/tests/t.py b/tests/t.py\n"
    assert without_files_of(tests, mine + tests + later) == mine + later
    assert without_files_of(tests, mine + tests) == mine
    assert without_files_of(tests, tests) == ""
    assert without_files_of("", mine + tests) == mine + tests

    hidden = Hidden(fail_to_pass=("t.py::a[x y]",), pass_to_pass=("-p.py::b",), commands=("make check",))
    environment = Environment(test_command=("python3", "-m", "pytest", "-x", "tests"))
    assert list(commands(hidden, environment)) == [
        ("sh", "-c", "make check"),
        ("python3", "-m", "pytest", "-q", "--", "t.py::a[x y]", "-p.py::b"),
    ]
    many = Hidden(pass_to_pass=tuple(f"t.py::n{number}" for number in range(1_200)))
    assert sum(len(argv) - 5 for argv in commands(many, Environment())) == 1_200
