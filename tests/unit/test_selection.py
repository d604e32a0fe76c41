"""Ranking: what evidence may and may not do."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, BlobRef, Candidate, CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.selection import evidence, rank, representatives


def candidate(name: str, *, diff: str | None = None, lines: int = 1, tokens: int = 10) -> Candidate:
    digest = name if diff is None else diff
    patch = BlobRef(name=f"t/e/{digest}", digest=digest, size=1) if digest else None
    return Candidate(
        candidate_id=name,
        agent_id=name,
        role=Role.DEV,
        summary="",
        stop_reason=StopReason.FINAL_ANSWER,
        artifacts=Artifacts(patch=patch, insertions=lines),
        usage=Usage(prompt_tokens=tokens),
        audit_head="",
        submitted_at="2026-01-01T00:00:00+00:00",
    )


def check(passed: bool, *, kind: CheckKind = CheckKind.DRY_RUN, required: bool = True, skipped: bool = False):
    return CheckResult(
        kind=kind,
        name=str(kind),
        passed=passed,
        required=required,
        score=float(passed),
        skipped_reason="no such tool" if skipped else "",
    )


def report(name: str, *results: CheckResult) -> CheckReport:
    return CheckReport(candidate_id=name, results=results)


checks = st.builds(
    CheckResult,
    kind=st.sampled_from(CheckKind),
    name=st.just("check"),
    passed=st.booleans(),
    required=st.booleans(),
    score=st.floats(0, 1),
    skipped_reason=st.sampled_from(["", "no tool"]),
)


@st.composite
def fields(draw: st.DrawFn, *, diffs: bool):
    """Candidates with evidence; with `diffs`, several may hand in the same one."""
    names = [f"agent-{number}" for number in range(draw(st.integers(1, 8)))]
    found = [
        candidate(
            name,
            diff=draw(st.sampled_from(["", "a", "b", "c"])) if diffs else None,
            lines=draw(st.integers(0, 5)),
            tokens=draw(st.integers(0, 5)),
        )
        for name in names
    ]
    reports = {name: report(name, *draw(st.lists(checks, max_size=4))) for name in names if draw(st.integers(0, 5)) > 0}
    return found, reports


@given(fields(diffs=True))
def test_no_failing_candidate_stands_above_an_accepted_one(given_field):
    found, reports = given_field
    ranking = rank(found, reports)
    accepted = [one.accepted for one in ranking]
    assert accepted == sorted(accepted, reverse=True)
    for one in ranking:
        known = reports.get(one.candidate_id)
        assert one.accepted == (known is not None and known.accepted)


@given(fields(diffs=True))
def test_every_candidate_is_told_of_once_and_ranks_count_from_one(given_field):
    found, reports = given_field
    ranking = rank(found, reports)
    told = [name for one in ranking for name in (one.candidate_id, *one.duplicates)]
    assert sorted(told) == sorted(one.candidate_id for one in found)
    assert [one.rank for one in ranking] == list(range(1, len(ranking) + 1))


@given(fields(diffs=False), st.randoms(use_true_random=False))
def test_the_order_of_submission_does_not_matter(given_field, random):
    found, reports = given_field
    shuffled = list(found)
    random.shuffle(shuffled)
    assert rank(shuffled, reports) == rank(found, reports)


@given(st.lists(checks, max_size=6))
def test_evidence_lies_between_zero_and_one(results):
    assert 0 <= evidence(report("a", *results)) <= 1


def test_a_patch_that_does_not_apply_has_no_evidence_whatever_else_passed():
    results = [check(False, kind=CheckKind.APPLY), check(True), check(True, kind=CheckKind.COMMAND)]
    assert evidence(report("a", *results)) == 0


def test_a_skipped_check_neither_helps_nor_harms():
    ran = check(True)
    assert evidence(report("a", ran, check(False, skipped=True))) == evidence(report("a", ran)) == 1
    assert not report("a", check(True, skipped=True)).accepted


def test_equal_evidence_falls_to_the_smaller_diff_then_the_cheaper_run_then_the_name():
    passing = {name: report(name, check(True)) for name in ("a", "b", "c", "d")}
    found = [
        candidate("d", lines=1, tokens=5),
        candidate("c", lines=1, tokens=5),
        candidate("b", lines=1, tokens=1),
        candidate("a", lines=9, tokens=1),
    ]
    assert [one.candidate_id for one in rank(found, passing)] == ["b", "c", "d", "a"]


def test_an_optional_failure_costs_score_but_not_acceptance():
    reports = {
        "a": report("a", check(True), check(False, kind=CheckKind.LINT, required=False)),
        "b": report("b", check(True), check(True, kind=CheckKind.LINT, required=False)),
    }
    first, second = rank([candidate("a"), candidate("b")], reports)
    assert (first.candidate_id, second.candidate_id) == ("b", "a")
    assert first.score > second.score
    assert second.accepted
    assert "not required" in second.reason


def test_the_cheapest_of_equal_diffs_stands_for_the_others():
    found = [candidate("b", diff="same"), candidate("a", diff="same", tokens=11), candidate("c")]
    reports = {name: report(name, check(True)) for name in "abc"}
    ranking = {one.candidate_id: one.duplicates for one in rank(found, reports)}
    assert ranking == {"b": ("a",), "c": ()}
    assert set(representatives(found, reports)) == {"b", "c"}


def test_evidence_is_what_a_candidate_without_a_report_lacks():
    [only] = rank([candidate("a")], {})
    assert (only.accepted, only.score, only.reason) == (False, 0.0, "no evidence could be gathered")
    failing = report("a", replace(check(False), message="2 failed"))
    assert "2 failed" in rank([candidate("a")], {"a": failing})[0].reason
