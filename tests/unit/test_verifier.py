"""A verifier model in a deliberation: who is scored, what scores do and cost, what people's ratings make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from swe_ai_fleet.domain.assignment import ScoreAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import AgentLost, Unavailable
from swe_ai_fleet.domain.event import CandidateScored, RunLost
from swe_ai_fleet.domain.memory import VERIFIER_MODEL, VERIFIER_SCORE, WorkOutcome
from swe_ai_fleet.domain.review import VerifierScore
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from tests.scripted_fleet import FAILED, ScriptedRun
from tests.unit.test_executions import World, a_task

ONE, TWO, THREE = "agent-dev-1", "agent-dev-2", "agent-dev-3"
WORDS = {ONE: 0.2, TWO: 0.9, THREE: 1.0}
SPENT = Usage(prompt_tokens=1_000, completion_tokens=1, model_calls=1)


def says(words: dict[str, float]) -> Callable[[ScoreAssignment], VerifierScore]:
    def say(asked: ScoreAssignment) -> VerifierScore:
        name = asked.candidate.candidate_id
        return VerifierScore(candidate_id=name, raw=words[name], score=words[name], model="m", usage=SPENT)

    return say


def a_world(**more: object) -> World:
    """Three agents, of whom the third fails, and a verifier that praises it most."""
    world = World(ended_work=lambda _: (), **more)
    world.fleet.runs = dict.fromkeys((THREE, f"{THREE}-r1"), ScriptedRun(checks=(FAILED,)))
    world.fleet.scoring = says(WORDS)
    return world


def asked(world: World) -> list[str]:
    return sorted(one.candidate.candidate_id for one in world.fleet.scored)


async def test_accepted_candidates_are_scored_once_and_the_better_one_wins() -> None:
    world = a_world()
    state = await world.run(a_task(rounds=0))
    assert asked(world) == [ONE, TWO]
    assert [one.candidate_id for one in state.ranking] == [TWO, ONE, THREE]
    assert [one.verifier for one in state.ranking] == [0.9, 0.2, None]
    assert "; verifier 0.90; " in state.ranking[0].reason
    assert {one.agent_id for one in world.fleet.scored} == {f"{ONE}-scored", f"{TWO}-scored"}
    assert state.usage.total_tokens == 3 * 101 + 2 * 1_001


async def test_a_verifier_that_fails_or_is_lost_costs_its_word_only() -> None:
    world = a_world()

    def fails(one: ScoreAssignment) -> VerifierScore:
        if one.candidate.candidate_id == ONE:
            return VerifierScore(candidate_id=ONE, error="the verifier's answer cannot be used", usage=SPENT, model="m")
        raise AgentLost("its host died")

    world.fleet.scoring = fails
    state = await world.run(a_task(rounds=0))
    assert state.winner_id == ONE
    assert [one.verifier for one in state.ranking] == [None] * 3
    [known] = [body.score for body in world.bodies(CandidateScored)]
    assert (known.candidate_id, known.score, known.error) == (ONE, None, "the verifier's answer cannot be used")
    assert [one.lost_agent_id for one in world.bodies(RunLost)] == [f"{TWO}-scored"]
    assert state.usage.total_tokens == 3 * 101 + 1_001
    assert len(world.fleet.scored) == 1 + 3
    # What no verifier can say is no score.
    world = a_world()
    world.fleet.scoring = lambda asked: VerifierScore(candidate_id=THREE, raw=7.0, score=1.0)
    state = await world.run(a_task(rounds=0))
    told = {name: (one.raw, one.score, one.error) for name, one in state.scores.items()}
    assert told == dict.fromkeys((ONE, TWO), (None, None, "its score is not between 0 and 1"))


BELIEVED = {ONE: 0.7, TWO: 0.9, THREE: 0.1}


def rated(score: str, rating: int, model: str = "m") -> WorkOutcome:
    return WorkOutcome(
        subject_id="e", success=True, rating=rating, metadata={VERIFIER_MODEL: model, VERIFIER_SCORE: score}
    )


async def scored(outcomes: Callable[[str], Sequence[WorkOutcome]]) -> tuple[list[float | None], set[int]]:
    """The scores of three candidates after a tenant's outcomes, and how many of them counted."""
    world = World(ended_work=outcomes)
    world.fleet.scoring = says(BELIEVED)
    scores = (await world.run(a_task(rounds=0))).scores
    return [scores[name].score for name in BELIEVED], {one.outcomes for one in scores.values()}


async def test_a_verifier_that_praises_everything_is_taken_down_and_a_higher_score_never_gives_less() -> None:
    praised = [rated("0.95", 5 if number % 2 else 1) for number in range(40)]
    # Each bin has ten outcomes of its own middle beforehand; the one below is pooled with it where it promises more.
    pooled = (20 + 10 * (0.9 + 0.7)) / (40 + 2 * 10)
    found, _ = await scored(lambda tenant: praised if tenant == DEFAULT_TENANT else ())
    assert found == pytest.approx([pooled, pooled, 0.1], abs=1e-6)
    by_score = [(score, number) for score in BELIEVED.values() for number in range(100)]
    right = [rated(str(score), 5 if number < 100 * score else 1) for score, number in by_score]
    assert (await scored(lambda _: right))[0] == pytest.approx(list(BELIEVED.values()), abs=1e-6)


async def test_only_what_people_rated_under_the_same_model_counts_and_few_or_no_outcomes_change_nothing() -> None:
    others = [rated("0.8", 0), rated("0.8", 5, "other"), *(rated(score, 5) for score in ("nan", "much", "1.5"))]
    unscored = WorkOutcome(subject_id="e", success=True, rating=5)
    few = [*(rated("0.9", 2) for _ in range(19)), *others, unscored]
    assert await scored(lambda _: few) == (list(BELIEVED.values()), {19})

    def unavailable(tenant: str) -> tuple[WorkOutcome, ...]:
        raise Unavailable("the bucket does not answer")

    assert (await scored(unavailable))[0] == list(BELIEVED.values())
