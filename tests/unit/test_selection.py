"""Ranking: what evidence may and may not do."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import (
    Artifacts,
    Candidate,
    CheckKind,
    CheckReport,
    CheckResult,
    ForeignTests,
    TestSummary,
    Verdict,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.review import Critique, Finding, Proof, ProofOutcome, Vote
from swe_ai_fleet.orchestrator.evidence import verdict_of
from swe_ai_fleet.orchestrator.ranking import drop_reasons, rank
from swe_ai_fleet.orchestrator.score import ARCHITECT, ScoredCandidate, evidence, lead
from tests.candidates import a_candidate
from tests.sampling import sample
from tests.tables import table


def candidate(name: str, *, diff: str | None = None, lines: int = 1, tokens: int = 10) -> Candidate:
    spent = Usage(prompt_tokens=tokens)
    one = a_candidate(name, diff=diff or "", usage=spent)
    patch = one.artifacts.patch if diff != "" else None
    return replace(one, artifacts=Artifacts(patch=patch, insertions=lines))


def check(passed: bool, *, kind: CheckKind = CheckKind.DRY_RUN, required: bool = True, skipped: bool = False):
    return CheckResult(
        kind=kind,
        name=str(kind),
        passed=passed,
        required=required,
        score=float(passed),
        message="7 passed" if passed else "",
        skipped_reason="no such tool" if skipped else "",
    )


def report(name: str, *results: CheckResult) -> CheckReport:
    verdict, reasons = verdict_of(results)
    return CheckReport(candidate_id=name, results=results, verdict=verdict, reasons=reasons)


def proven(name: str) -> CheckReport:
    return report(name, replace(check(True), shown=("t.py::test_a",), message="1 test fails without the change"))


PASSING_SCORE = 0.6667
PASSING = {name: report(name, check(True)) for name in "abcd"}


def best(ranking) -> list[str]:
    return [one.candidate_id for one in ranking]


checks = st.builds(
    CheckResult,
    kind=st.sampled_from(CheckKind),
    name=st.just("check"),
    passed=st.booleans(),
    required=st.booleans(),
    score=st.floats(0, 1),
    skipped_reason=st.sampled_from(["", "no tool"]),
    shown=st.sampled_from([(), ("t.py::test_a",)]),
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


def critique(
    about: str,
    score: float,
    *,
    by: str = "peer",
    must_fix: bool = False,
    proof: ProofOutcome | None = ProofOutcome.REPRODUCED,
    at: int = 1,
    error: str = "",
):
    """A critique; a must-fix of its is shown by a command that was reproduced, unless told otherwise."""
    shown = None if proof is None else Proof(command="python check.py", outcome=proof)
    findings = (Finding(text="wrong", must_fix=True, proof=shown),) if must_fix else ()
    return Critique(reviewer_id=by, candidate_id=about, round=at, score=score, findings=findings, error=error, at="now")


def votes(choices: str, order: str, *, by: str = "judge") -> list[Vote]:
    """One vote for each letter of the choices; `?` is one that could not be read."""
    return [
        Vote(
            judge_id=by, sample=sample, order=tuple(order), choice=choice.strip("?"), error="?" if choice == "?" else ""
        )
        for sample, choice in enumerate(choices, start=1)
    ]


NAMES = [f"agent-{number}" for number in range(8)]
PEOPLE = st.sampled_from([*NAMES[:3], "peer", "judge", ARCHITECT])
critiques = st.builds(
    critique, st.sampled_from(NAMES), st.floats(allow_nan=True), by=PEOPLE, must_fix=st.booleans(), at=st.integers(0, 5)
)
ballots = st.builds(
    Vote,
    judge_id=PEOPLE,
    sample=st.just(1),
    order=st.lists(st.sampled_from(NAMES), unique=True).map(tuple),
    choice=st.sampled_from([*NAMES, ""]),
    error=st.sampled_from(["", "odd"]),
)


def opinions() -> st.SearchStrategy[tuple[list[Critique], list[Vote]]]:
    """What reviewers and judges say of `agent-0` to `agent-7`, sensible or not."""
    said = st.lists(critiques, max_size=6, unique_by=lambda one: one.round)
    return st.tuples(said, st.lists(ballots, max_size=6))


scores = st.dictionaries(st.sampled_from([f"agent-{number}" for number in range(8)]), st.floats(allow_nan=True))


@settings(max_examples=60)
@given(fields(diffs=True), opinions(), scores, st.booleans(), st.randoms(use_true_random=False))
def test_evidence_comes_before_opinion_and_the_order_in_which_anything_comes_does_not_matter(
    given_field, opinion, scores, needs_proof, random
):
    (found, reports), (said, cast) = given_field, opinion
    ranking = rank(found, reports, critiques=said, votes=cast, scores=scores, needs_proof=needs_proof)
    # Verified stands above unverified and that above refuted, whoever praises it.
    judged = [one for one in ranking if one.verdict is not None and reports[one.candidate_id].accepted]
    ranks = [one.verdict.rank for one in judged if one.verdict is not None]
    assert ranks == sorted(ranks, reverse=True)
    assert all(one.score >= 0.3333 for one in judged)
    assert not [one for one in ranking if needs_proof and one.accepted and one.verdict is not Verdict.VERIFIED]
    # Every candidate is told of once, and ranks count from one.
    told = [name for one in ranking for name in (one.candidate_id, *one.duplicates)]
    assert sorted(told) == sorted(one.candidate_id for one in found)
    assert [one.rank for one in ranking] == list(range(1, len(ranking) + 1))
    # No opinion lifts a failing candidate over a passing one, and among those that failed it decides nothing at all.
    assert [one.accepted for one in ranking] == sorted((one.accepted for one in ranking), reverse=True)
    assert [one.score for one in ranking] == sorted((one.score for one in ranking), reverse=True)
    assert all(0 <= part <= 1 for one in ranking for part in (one.score, one.evidence, one.review or 0, one.votes or 0))
    assert all(0 <= one.verifier <= 1 for one in ranking if one.verifier is not None)
    passed = {name for name, one in reports.items() if one.accepted}
    assert {one.candidate_id for one in ranking if one.accepted} <= passed
    failing = [one.candidate_id for one in ranking if not one.accepted]
    assert failing == [one.candidate_id for one in rank(found, reports, needs_proof=needs_proof) if not one.accepted]
    shuffled = [list(one) for one in (found, said, cast, scores.items())]
    for one in shuffled:
        random.shuffle(one)
    opinions = {"critiques": shuffled[1], "votes": shuffled[2], "scores": dict(shuffled[3])}
    assert rank(shuffled[0], reports, **opinions, needs_proof=needs_proof) == ranking


def test_only_what_is_verified_wins_where_the_task_wants_proof() -> None:
    field, reports = [candidate("a", lines=1), candidate("b", lines=90)], {"a": report("a", check(True))}
    assert [one.accepted for one in rank(field[:1], reports)] == [True]
    assert [one.accepted for one in rank(field[:1], reports, needs_proof=True)] == [False]
    first, second = rank(field, {**reports, "b": proven("b")}, critiques=[critique("a", 1.0), critique("b", 0.0)])
    assert (first.candidate_id, first.verdict, second.verdict) == ("b", Verdict.VERIFIED, Verdict.UNVERIFIED)
    assert first.reason.startswith("verified: dry_run: 1 test fails without the change; ")
    assert first.reason.endswith("ahead of a: that one is unverified")
    assert second.reason.endswith("behind b: that one is verified")


@settings(max_examples=60)
@given(fields(diffs=False), opinions(), st.data())
def test_better_evidence_never_stands_lower(given_field, opinion, data):
    (found, reports), (said, cast) = given_field, opinion
    name = data.draw(st.sampled_from(found)).candidate_id
    results = reports[name].results if name in reports else ()
    better = report(
        name,
        *(
            replace(one, passed=one.passed or data.draw(st.booleans()), score=data.draw(st.floats(one.score, 1)))
            for one in results
        ),
    )

    def place(known: dict[str, CheckReport]) -> int:
        return next(one.rank for one in rank(found, known, critiques=said, votes=cast) if one.candidate_id == name)

    if better.accepted == (name in reports and reports[name].accepted):
        assert place({**reports, name: better}) <= place(reports)
    else:
        # Now that it passed, others' votes for it are heard, and its author's opinions as before.
        assert place({**reports, name: better}) <= 1 + sum(
            one.accepted for one in rank(found, reports) if one.candidate_id != name
        )


def test_what_counts_as_evidence():
    results = [check(False, kind=CheckKind.APPLY), check(True), check(True, kind=CheckKind.COMMAND)]
    assert evidence(report("a", *results)) == 0
    # A skipped check neither helps nor harms, and a rubric, however long, weighs no more than its kind.
    ran, item = check(True), check(False, kind=CheckKind.RUBRIC, required=False)
    assert evidence(report("a", ran, check(False, skipped=True))) == evidence(report("a", ran)) == 1
    assert not report("a", check(True, skipped=True)).accepted
    assert evidence(report("a", ran, *[item] * 40)) == evidence(report("a", ran, item))
    [only] = rank([candidate("a")], {})
    assert (only.accepted, only.score, only.reason) == (False, 0.0, "no evidence could be gathered")
    # Scores beyond their bounds, and no numbers, are bounded.
    scored = [evidence(report("a", replace(ran, score=score))) for score in (-1.0, 0.25, 7.0, float("nan"))]
    assert scored == [0.0, 0.25, 1.0, 0.0]
    (first,) = rank([candidate("a")], PASSING, critiques=[critique("a", 7.0)])
    assert (first.review, first.score, first.evidence) == (1.0, PASSING_SCORE, 1.0)


def test_equal_evidence_falls_to_the_smaller_diff_then_the_cheaper_run_then_the_name():
    sizes = {"d": (1, 5), "c": (1, 5), "b": (1, 1), "a": (9, 1)}
    found = [candidate(name, lines=lines, tokens=tokens) for name, (lines, tokens) in sizes.items()]
    assert best(rank(found, PASSING)) == ["b", "c", "d", "a"]
    # Lines taken away are changed lines, too.
    removing = [candidate("a", lines=3), candidate("b", lines=2)]
    removing = [replace(one, artifacts=replace(one.artifacts, deletions=5 - 2 * at)) for at, one in enumerate(removing)]
    assert rank(removing, PASSING)[0].reason.endswith("ahead of a: equal scores, 5 changed lines against 8")


def test_the_cheapest_of_equal_diffs_stands_for_the_others():
    found = [candidate("b", diff="same"), candidate("a", diff="same", tokens=11), candidate("c")]
    reports = {name: report(name, check(True)) for name in "abc"}
    ranking = {one.candidate_id: one.duplicates for one in rank(found, reports)}
    assert ranking == {"b": ("a",), "c": ()}


def test_reviews_change_the_order_of_equal_evidence_and_say_so():
    field = [candidate("a", lines=1), candidate("b", lines=9)]
    assert best(rank(field, PASSING)) == ["a", "b"]
    said = [critique("a", 0.9, must_fix=True), critique("b", 0.8), critique("b", 0.9, by="other")]
    first, second = rank(field, PASSING, critiques=said)
    assert (first.candidate_id, first.review, second.review) == ("b", 0.85, 0.5)
    assert first.reason == (
        "unverified: dry_run: 7 passed; reviews 0.85 from 2; 9 changed lines; ahead of a: reviews 0.85 against 0.50"
    )
    assert second.reason == (
        "unverified: dry_run: 7 passed; reviews 0.50 from 1, 1 must-fix reproduced; 1 changed lines; "
        "behind b: reviews 0.50 against 0.85"
    )


@table(
    ("proof", "score", "counts"),
    [
        (ProofOutcome.REPRODUCED, 0.9, 0.5),
        (ProofOutcome.REPRODUCED, 0.2, 0.2),
        # Whoever claims a fault that is not there has said nothing against the candidate.
        (ProofOutcome.PASSES, 0.1, 0.5),
        (ProofOutcome.PASSES, 0.9, 0.9),
        (ProofOutcome.FAILS_EVERYWHERE, 0.9, 0.9),
        (ProofOutcome.NOT_RUN, 0.9, 0.9),
        (None, 0.9, 0.9),
    ],
)
def test_a_must_fix_counts_by_what_came_of_its_proof(proof: ProofOutcome | None, score: float, counts: float) -> None:
    said = [critique("a", score, must_fix=True, proof=proof)]
    (first, *_) = [
        one for one in rank([candidate("a"), candidate("b")], PASSING, critiques=said) if one.candidate_id == "a"
    ]
    assert first.review == counts
    assert ("must-fix reproduced" in first.reason) is (proof is ProofOutcome.REPRODUCED)


def test_what_counts_of_reviews():
    field = [candidate("a"), candidate("b")]
    said = [
        critique("a", 0.2, at=1),
        critique("a", 0.6, at=2),
        critique("a", 1.0, by="a"),
        critique("a", 0.0, by="other", error="no answer"),
        critique("gone", 1.0),
    ]
    ranking = {one.candidate_id: one for one in rank(field, PASSING, critiques=said)}
    assert (ranking["a"].review, ranking["b"].review) == (0.6, None)
    # Nobody said anything about the other one: that is neither praise nor blame.
    assert ranking["a"].rank == 1
    lower = rank(field, PASSING, critiques=[critique("a", 0.4)])
    assert best(lower) == ["b", "a"]


def test_opinion_outweighs_a_blemish_and_no_more():
    def blemished(kind: CheckKind) -> CheckReport:
        rest = [check(True, kind=CheckKind.APPLY), check(True, kind=CheckKind.POLICY), check(True)]
        return report("a", *rest, check(False, kind=kind, required=False))

    clean = report("b", *(check(True, kind=kind) for kind in (CheckKind.APPLY, CheckKind.POLICY, CheckKind.DRY_RUN)))
    field, said = [candidate("a"), candidate("b")], [critique("a", 0.9), critique("b", 0.1)]
    first, _ = rank(field, {"a": blemished(CheckKind.LINT), "b": clean}, critiques=said)
    assert first.candidate_id == "a"
    assert "reviews 0.90 against 0.10, in spite of evidence 0.88 against 1.00" in first.reason
    assert best(rank(field, {"a": blemished(CheckKind.COMMAND), "b": clean}, critiques=said)) == ["b", "a"]


def test_a_persuasive_candidate_that_fails_stays_behind():
    field = [candidate("a", lines=1), candidate("b", lines=50)]
    reports = {"a": report("a", replace(check(False), message="1 failed", score=0.99)), "b": PASSING["b"]}
    said = [critique("a", 1.0, by=name) for name in ("x", "y")] + [critique("b", 0.0, must_fix=True)]
    first, second = rank(field, reports, critiques=said, votes=votes("aaaa", "ab"))
    assert best([first, second]) == ["b", "a"]
    assert (first.votes, second.votes) == (None, None)
    assert "4 not counted" in first.reason
    assert second.reason.endswith("behind b: that one is unverified")
    # What passed with the worst of scores is before what failed with the best.
    reports = {"a": report("a", replace(check(True), score=0.0)), "b": report("b", replace(check(False), score=1.0))}
    first, second = rank([candidate("a"), candidate("b")], reports)
    assert (first.candidate_id, first.score, second.score) == ("a", 0.3333, 0.3333)


def test_a_verifier_is_as_heavy_as_reviews_and_its_words_name_it() -> None:
    field = [candidate("a"), candidate("b"), candidate("c")]
    reports = {**PASSING, "c": report("c", check(True))}
    ranking = rank(field, reports, scores={"a": 0.2, "b": 0.81})
    # Of c nobody said anything: it is neither praised nor blamed.
    assert [(one.candidate_id, one.verifier) for one in ranking] == [("b", 0.81), ("c", None), ("a", 0.2)]
    assert "; verifier 0.81; " in ranking[0].reason
    assert ranking[0].reason.endswith("ahead of c: verifier 0.81 against none")
    assert "; verifier" not in ranking[1].reason.partition("; behind")[0]
    # merit = (4 * evidence + 1 * verifier) / 5, in the tier of what is unverified
    assert ranking[0].score == pytest.approx((1 + (4 * ranking[0].evidence + 0.81) / 5) / 3, abs=1e-4)
    against = rank(field, reports, scores={"a": 0.2, "b": 0.81}, critiques=[critique("a", 0.9), critique("b", 0.3)])
    assert best(against)[0] == "b"
    against = rank(field, reports, scores={"a": 0.2, "b": 0.81}, critiques=[critique("a", 1.0), critique("b", 0.3)])
    assert best(against)[0] == "a"


def test_a_verifier_lifts_nothing_that_is_refuted() -> None:
    field = [candidate("a"), candidate("b"), candidate("c")]
    reports = {"a": report("a", check(False)), "b": report("b", check(True)), "c": proven("c")}
    praised = rank(field, reports, scores={"a": 1.0, "b": 0.0, "c": 0.0})
    assert [(one.candidate_id, one.accepted, one.verifier) for one in praised] == [
        ("c", True, 0.0),
        ("b", True, 0.0),
        ("a", False, None),
    ]
    assert [one.verdict for one in praised] == [Verdict.VERIFIED, Verdict.UNVERIFIED, Verdict.REFUTED]
    # A word on it alone is no part of anybody's score.
    assert rank(field, reports, scores={"a": 1.0}) == rank(field, reports)


@table(
    ("lines", "cast", "shares"),
    [
        (
            {"a": 1, "b": 1, "c": 1},
            [*votes("bb", "bc", by="a"), *votes("cc", "ac", by="b"), *votes("b?", "ab", by="c")],
            {"b": 1.0, "c": 0.5, "a": 0.0},
        ),
        # Nobody's vote about their own work counts, nor does a judge lower its own candidate.
        ({"a": 1, "b": 2}, votes("bbb", "ab", by="b"), {"a": None, "b": None}),
        ({"a": 1, "b": 2}, votes("b", "ab", by="a"), {"b": 1.0, "a": None}),
        # Who stood on no ballot is neither praised nor blamed.
        ({"a": 3, "b": 1, "c": 2}, votes("aa", "ab", by="c"), {"a": 1.0, "c": None, "b": 0.0}),
        # What has an error, or is about nobody shown, decides nothing.
        ({"a": 1, "b": 1}, [replace(vote, error="truncated") for vote in votes("bbb", "ab")], {"a": None, "b": None}),
        ({"a": 1, "b": 1}, votes("bbb", "a"), {"a": None, "b": None}),
    ],
)
def test_votes_are_shares_of_the_ballots_a_candidate_was_on(lines, cast, shares):
    ranking = rank([candidate(name, lines=count) for name, count in lines.items()], PASSING, votes=cast)
    assert [(one.candidate_id, one.votes) for one in ranking] == list(shares.items())
    if len(cast) == 6:
        assert "3 of 3 votes, 1 not counted" in ranking[0].reason
    if set(shares.values()) == {None}:
        assert {one.score for one in ranking} == {PASSING_SCORE}


def test_the_architects_choice_decides_among_those_that_passed():
    field = [candidate("a", lines=1), candidate("b", lines=9), candidate("c"), candidate("d")]
    reports = {**PASSING, "d": report("d", check(False))}
    said = [critique("a", 1.0), critique("b", 0.0), critique("c", 0.9)]
    chosen = rank(field, reports, critiques=said, votes=votes("bab", "ab", by=ARCHITECT))
    assert best(chosen) == ["b", "a", "c", "d"]
    assert "the architect's choice (2 of 3 votes)" in chosen[0].reason
    assert "ahead of a: the architect's choice, in spite of reviews 0.00 against 1.00" in chosen[0].reason
    assert best(rank(field, reports, critiques=said, votes=votes("ddd", "abd", by=ARCHITECT))) == ["a", "c", "b", "d"]
    # One that cannot be read, whoever cast it, takes nothing from it.
    odd = votes("?", "ab", by="peer")
    assert best(rank(field, reports, critiques=said, votes=[*votes("b", "ab", by=ARCHITECT), *odd])) == best(chosen)
    # A tie leaves it to everything else.
    assert best(rank(field, reports, critiques=said, votes=votes("abba", "ab", by=ARCHITECT)))[:2] == ["a", "b"]


def test_candidates_that_came_to_the_same_change_stand_together_and_before_others():
    field = [candidate("a", lines=1), candidate("b", lines=5), candidate("c", lines=4), candidate("d", lines=9)]
    behaviours = {"a": "one", "b": "other", "c": "other", "d": "third"}
    first, *rest = rank(field, PASSING, behaviours=behaviours)
    assert (first.candidate_id, first.duplicates) == ("c", ("b",))
    assert "2 identical candidates" in first.reason
    assert "ahead of a: agreement 0.50 against 0.25" in first.reason
    assert best(rest) == ["a", "d"]
    # Where a check tells them apart they are two.
    apart = {**PASSING, "b": report("b", check(True), check(False, kind=CheckKind.LINT, required=False))}
    assert len(rank(field, apart, behaviours=behaviours)) == 4


def test_the_reason_names_what_set_two_candidates_apart():
    field = [candidate("a", lines=2, tokens=9), candidate("b", lines=2, tokens=5), candidate("c", lines=2, tokens=9)]
    reasons = [one.reason for one in rank(field, PASSING)]
    assert reasons[0].endswith("ahead of a: equal scores, 5 tokens against 9")
    assert reasons[2].endswith("behind a: equal in every criterion; ordered by name")
    long = report("a", replace(check(False), message="x" * 10_000))
    assert len(rank([candidate("a")], {"a": long})[0].reason) < 500


def test_equal_scores_fall_to_the_better_evidence():
    lesser = report("b", check(True), replace(check(True, kind=CheckKind.COMMAND, required=False), score=0.5))
    field, said = [candidate("a", lines=9), candidate("b", lines=1)], [critique("a", 0.0), critique("b", 1.0)]
    first, second = rank(field, {"a": PASSING["a"], "b": lesser}, critiques=said)
    assert (first.candidate_id, first.score) == ("a", second.score)
    assert first.reason.endswith("equal scores, 1.0000 evidence against 0.7500")


def test_the_architect_decides_alone_or_not_at_all() -> None:
    found, alone = [candidate("a"), candidate("b")], votes("b", "ab", by=ARCHITECT)
    (first, _) = rank(found, PASSING, votes=alone)
    assert first.reason.startswith("unverified: dry_run: 7 passed; the architect's choice")
    first, second = rank(found, PASSING, votes=[*alone, *votes("aa", "ab", by="judge")])
    assert (first.candidate_id, first.votes, second.votes) == ("a", 0.6667, 0.3333)
    assert "architect" not in first.reason + second.reason


def test_agreement_counts_accepted_candidates_only() -> None:
    found = [candidate(name, diff=diff) for name, diff in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "z"), ("e", "z"))]
    reports = {name: report(name, check(name not in "de")) for name in "abcde"}
    scores = {one.candidate_id: one.score for one in rank(found, reports)}
    # Two of three accepted ones agree: (4 * 1 + 0.5 * 2/3) / 4.5, and a third of that in the middle third.
    assert scores["a"] == round((1 + (4 + 1 / 3) / 4.5) / 3, 4)
    assert scores["c"] == round((1 + (4 + 1 / 6) / 4.5) / 3, 4)
    assert scores["d"] == 0.0


def test_only_equal_outcomes_make_equal_changes_one() -> None:
    def tests(*failing: str) -> CheckResult:
        return replace(check(False), tests=TestSummary(passed=1, failed=len(failing), failing=failing))

    def rubric(score: float) -> CheckResult:
        return replace(check(True, kind=CheckKind.RUBRIC, required=False), score=score, passed=score > 0.5)

    def places(one: CheckResult, other: CheckResult) -> int:
        found = [candidate("a", diff="same"), candidate("b", diff="same")]
        return len(rank(found, {"a": report("a", one), "b": report("b", other)}))

    assert places(check(True), check(True)) == 1
    assert places(check(True), check(False)) == 2
    assert places(check(True), check(True, skipped=True)) == 2
    assert places(check(False, skipped=True), check(True, skipped=True)) == 1
    assert places(tests("t1"), tests("t2")) == 2
    assert places(tests("t1", "t2"), tests("t2", "t1")) == 1
    # What a model thinks may vary, and tells no changes apart.
    assert places(rubric(0.2), rubric(0.9)) == 1


def test_who_stands_for_equal_changes_has_the_better_evidence() -> None:
    found = [candidate("a"), candidate("b")]
    reports = {
        name: report(name, replace(check(True, kind=CheckKind.LINT), score=score))
        for name, score in (("a", 0.1), ("b", 0.9))
    }
    assert best(rank(found, reports, behaviours={"a": "k", "b": "k"})) == ["b"]
    assert set(best(rank(found, reports))) == {"a", "b"}
    assert set(best(rank(found, {}))) == {"a", "b"}


def test_complaints_are_told_in_full_up_to_a_bound() -> None:
    def failed(name: str, message: str = "", *, required: bool = True) -> CheckResult:
        return replace(check(False, required=required), name=name, message=message)

    def said(*results: CheckResult) -> str:
        return rank([candidate("a")], {"a": report("a", *results)})[0].reason

    optional = rank([candidate("a")], {"a": report("a", check(True), failed("lint", "E1", required=False))})[0]
    assert optional.accepted and optional.score < PASSING_SCORE
    assert said(failed("lint", "E1", required=False)).endswith("; lint failed (not required): E1; 1 changed lines")
    assert said(failed("tests")) == "tests failed; 1 changed lines"
    told = said(check(True, kind=CheckKind.APPLY), check(False, skipped=True))
    assert told == "unverified: dry_run: no such tool; 1 changed lines"
    for result, words in ((check(True), "every check passed"), (check(True, skipped=True), "no required check")):
        old = replace(report("a", result), verdict=None)
        assert rank([candidate("a")], {"a": old})[0].reason.startswith(words)
    assert said(failed("tests", "x" * 300)) == f"tests failed: {'x' * 300}; 1 changed lines"
    assert said(failed("tests", "x" * 301)) == f"tests failed: {'x' * 299}…; 1 changed lines"
    many = [failed(f"c{number}") for number in range(7)]
    assert said(*many[:5]) == "; ".join([*(f"c{number} failed" for number in range(5)), "1 changed lines"])
    assert said(*many).endswith("c4 failed; and 2 more checks failed; 1 changed lines")


def test_what_set_two_apart_is_told_with_what_spoke_against_it() -> None:
    found, reports = [candidate("a"), candidate("b")], {name: report(name, check(True)) for name in "ab"}
    said = [critique("a", 0.9), critique("b", 0.5)]
    first, second = rank(found, reports, critiques=said, votes=votes("b", "ab", by=ARCHITECT))
    assert first.reason.endswith("ahead of a: the architect's choice, in spite of reviews 0.50 against 0.90")
    assert second.reason.endswith("behind b: the architect's choice of that one, in spite of reviews 0.90 against 0.50")
    first, second = rank(found, {**reports, "b": report("b", check(False))})
    assert first.reason.endswith("ahead of b: that one is refuted")
    assert second.reason.endswith("behind a: that one is unverified")
    first, _ = rank(found, {**reports, "b": report("b", check(True, skipped=True))})
    assert first.reason.endswith("ahead of b: that one is not accepted")
    close = [critique("a", 0.9001), critique("b", 0.9002)]
    assert "reviews 0.900200 against 0.900100" in rank(found, reports, critiques=close)[0].reason


def test_what_nobody_said_is_none_and_new_tests_are_told_where_they_count() -> None:
    found, tested = [candidate("a"), candidate("b")], replace(PASSING["a"], foreign=ForeignTests(value=0.9))
    for reports, opinions, words in (
        ({"a": tested}, {}, "new tests 0.90 against none"),
        ({}, {"critiques": [critique("a", 0.9)]}, "reviews 0.90 against none"),
        ({}, {"votes": votes("a", "a")}, "votes 1.00 against none"),
    ):
        first, second = rank(found, {**PASSING, **reports}, **opinions)
        assert first.reason.endswith(f"ahead of b: {words}")
        assert (first.verdict_reasons, second.verdict_reasons) == (tested.reasons if reports else (), ())
    refuted = replace(report("b", check(False)), foreign=tested.foreign)
    assert "new tests" not in rank(found, {"a": tested, "b": refuted})[1].reason


def test_why_a_candidate_has_no_place() -> None:
    revisions = {"first": "", "kept": "first", "worse": "kept", "pending": "kept"}
    found = {name: a_candidate(name, revises=before) for name, before in revisions.items()}
    judged = frozenset({"first", "kept", "worse"})
    state = sample(ExecutionState, candidates=found, judged=judged, dropped={"worse": "it fails"})
    assert drop_reasons(state) == {"first": "replaced by a revision: kept", "worse": "it fails"}


def test_a_place_without_a_rival_of_its_tier_leads_by_infinity() -> None:
    accepted, refuted = proven("a"), report("b", check(False))
    places = [ScoredCandidate(candidate=a_candidate(one.candidate_id), report=one) for one in (accepted, refuted)]
    assert lead([]) == lead(places[:1]) == lead(places) == inf
    assert lead([places[0], places[0]]) == 0
