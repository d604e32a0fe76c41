"""Scores of a verifier model against what people said of the work that had them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from swe_ai_fleet.domain.memory import VERIFIER_MODEL, VERIFIER_SCORE, WorkOutcome
from swe_ai_fleet.orchestrator.judging import Verifier
from tests.unit.test_executions import World, a_task
from tests.unit.test_verifier import says

WORDS = {"agent-dev-1": 0.7, "agent-dev-2": 0.9, "agent-dev-3": 0.1}


def rated(score: str, rating: int, model: str = "m") -> WorkOutcome:
    return WorkOutcome(
        subject_id="e", success=True, rating=rating, metadata={VERIFIER_MODEL: model, VERIFIER_SCORE: score}
    )


async def scored(outcomes: Sequence[WorkOutcome]) -> tuple[list[float | None], set[int]]:
    """The scores of three candidates after these outcomes, and how many of them counted."""
    world = World(verifier=Verifier(outcomes=lambda _: outcomes))
    world.fleet.scoring = says(WORDS)
    scores = (await world.run(a_task(rounds=0))).scores
    return [scores[name].score for name in WORDS], {one.outcomes for one in scores.values()}


async def test_a_verifier_that_praises_everything_is_taken_down_and_a_higher_score_never_gives_less() -> None:
    praised = [rated("0.95", 5 if number % 2 else 1) for number in range(40)]
    # Each bin has ten outcomes of its own middle beforehand; the one below is pooled with it where it promises more.
    pooled = (20 + 10 * (0.9 + 0.7)) / (40 + 2 * 10)
    assert (await scored(praised))[0] == pytest.approx([pooled, pooled, 0.1], abs=1e-6)
    right = [rated(str(score), 5 if number < 100 * score else 1) for score in WORDS.values() for number in range(100)]
    assert (await scored(right))[0] == pytest.approx(list(WORDS.values()), abs=1e-6)


async def test_only_what_people_rated_under_the_same_model_counts_and_few_outcomes_change_nothing() -> None:
    others = [rated("0.8", 0), rated("0.8", 5, "other"), *(rated(score, 5) for score in ("nan", "much", "1.5"))]
    unscored = WorkOutcome(subject_id="e", success=True, rating=5)
    assert await scored([*(rated("0.9", 2) for _ in range(19)), *others, unscored]) == (list(WORDS.values()), {19})
