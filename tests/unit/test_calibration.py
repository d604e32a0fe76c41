"""Scores of a verifier model against what people said of the work that had them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.memory import VERIFIER_MODEL, VERIFIER_SCORE, Outcome
from swe_ai_fleet.orchestrator.calibration import LEAST_OUTCOMES, PRIOR, calibrated, rated
from tests.tables import table

share = st.floats(0, 1)
known = st.lists(st.tuples(share, share), max_size=200)


@given(share, known)
def test_with_few_outcomes_a_score_stays_as_it_is(score: float, seen: list[tuple[float, float]]) -> None:
    assert calibrated(score, seen[: LEAST_OUTCOMES - 1]) == score


@given(known, share, share)
def test_a_higher_score_never_gives_less(seen: list[tuple[float, float]], one: float, other: float) -> None:
    low, high = (calibrated(score, seen) for score in sorted((one, other)))
    assert 0 <= low <= high + 1e-12 <= 1 + 1e-12


@given(known, share, st.randoms(use_true_random=False))
def test_the_order_of_outcomes_does_not_matter(seen: list[tuple[float, float]], score: float, random) -> None:
    shuffled = list(seen)
    random.shuffle(shuffled)
    assert calibrated(score, shuffled) == pytest.approx(calibrated(score, seen))


@table("score", [0.0, 0.1, 0.37, 0.5, 0.9, 1.0])
def test_a_verifier_that_is_right_about_itself_is_believed(score: float) -> None:
    seen = [(middle, float(number < 100 * middle)) for middle in (0.1, 0.3, 0.5, 0.7, 0.9) for number in range(100)]
    assert calibrated(score, seen) == pytest.approx(score)


def test_a_verifier_that_praises_everything_is_taken_down_by_the_formula() -> None:
    seen = [(0.95, float(number % 2)) for number in range(40)]
    expected = (20 + PRIOR * 0.9) / (40 + PRIOR)
    # The bins below are pooled with it where they promise more.
    pooled = (20 + PRIOR * (0.9 + 0.7)) / (40 + 2 * PRIOR)
    assert expected < 0.7
    assert calibrated(0.9, seen) == pytest.approx(pooled)
    assert calibrated(0.7, seen) == pytest.approx(pooled)
    assert calibrated(0.1, seen) == pytest.approx(0.1)
    assert calibrated(0.95, seen) < 0.95


def test_only_what_people_rated_under_the_same_model_counts() -> None:
    def outcome(rating: int, **metadata: str) -> Outcome:
        return Outcome(subject_id="e", success=True, rating=rating, metadata=metadata)

    scored = {VERIFIER_MODEL: "m", VERIFIER_SCORE: "0.8"}
    outcomes = [
        outcome(5, **scored),
        outcome(2, **scored),
        outcome(0, **scored),
        outcome(5, **{**scored, VERIFIER_MODEL: "other"}),
        outcome(5, **{**scored, VERIFIER_SCORE: "nan"}),
        outcome(5, **{**scored, VERIFIER_SCORE: "much"}),
        outcome(5, **{**scored, VERIFIER_SCORE: "1.5"}),
        outcome(5),
    ]
    assert rated(outcomes, "m") == [(0.8, 1.0), (0.8, 0.25)]
