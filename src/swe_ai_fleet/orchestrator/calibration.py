"""Calibration of a verifier model's scores against people's ratings of the same work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from swe_ai_fleet.domain.json_values import number_in
from swe_ai_fleet.domain.memory import BEST_RATING, LEAST_RATING, VERIFIER_MODEL, VERIFIER_SCORE, WorkOutcome

BINS = 5
"""Bins of equal width that scores from 0 to 1 fall into."""
PRIOR = 10.0
"""The weight of a bin's own middle, as a number of outcomes."""
LEAST_OUTCOMES = 20
"""With fewer outcomes a score is not changed."""

Rated = tuple[float, float]
"""A verifier's score of a winner, and its rating by people, both from 0 to 1."""


def rated(outcomes: Iterable[WorkOutcome], model: str) -> list[Rated]:
    """The scores of a verifier model for work that people rated later; a rating of 1 is 0, one of 5 is 1.

    An outcome without a rating is not used: the score itself helped to decide its success.
    """
    return [
        (score, (outcome.rating - LEAST_RATING) / (BEST_RATING - LEAST_RATING))
        for outcome in outcomes
        if outcome.rating
        and outcome.metadata.get(VERIFIER_MODEL) == model
        and (score := number_in(outcome.metadata.get(VERIFIER_SCORE, ""), 0, 1)) is not None
    ]


def calibrated(score: float, ratings: Sequence[Rated]) -> float:
    """The score as the share of good outcomes that such scores had, from 0 to 1; a higher score never gives less.

    `share(bin) = (sum of good + PRIOR * middle) / (outcomes + PRIOR)` in `BINS` bins: histogram binning (Zadrozny and
    Elkan, "Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers", 2001) with
    the m-estimate (Cestnik, "Estimating probabilities", 1990) towards the score itself. Bins in the wrong
    order are pooled by their weights, `outcomes + PRIOR` (pool adjacent violators: Ayer et al., 1955). The score is
    then moved by the correction of its bin, `share - middle`, interpolated linearly between two middles.

    Args:
        score: From 0 to 1.
        ratings: Earlier scores of the same verifier, with the ratings of the work.
    """
    if len(ratings) < LEAST_OUTCOMES:
        return score
    good, weights = [PRIOR * _middle(bin_) for bin_ in range(BINS)], [PRIOR] * BINS
    for earlier, quality in ratings:
        bin_ = min(BINS - 1, int(earlier * BINS))
        good[bin_] += quality
        weights[bin_] += 1
    moves = [share - _middle(bin_) for bin_, share in enumerate(_monotone(good, weights))]
    return min(1.0, max(0.0, score + _between(score, moves)))


def _monotone(sums: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The weighted means, each pooled with its neighbours until none is lower than the one before it."""
    pools: list[tuple[float, float, int]] = []
    for total, weight in zip(sums, weights, strict=True):
        pool = (total, weight, 1)
        while pools and pools[-1][0] / pools[-1][1] >= pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    return [total / weight for total, weight, bins in pools for _ in range(bins)]


def _between(score: float, moves: Sequence[float]) -> float:
    """The correction of a score, interpolated between the middles of bins; constant beyond the outer ones."""
    for low, high in pairwise(range(BINS)):
        if _middle(low) <= score <= _middle(high):
            part = (score - _middle(low)) * BINS
            return moves[low] * (1 - part) + moves[high] * part
    return moves[0] if score < _middle(0) else moves[-1]


def _middle(bin_: int) -> float:
    return (bin_ + 0.5) / BINS
