"""A verifier model in a deliberation: who is scored, what scores do and cost."""

from __future__ import annotations

from collections.abc import Callable

from swe_ai_fleet.domain.assignment import ScoreAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import AgentLost, Unavailable
from swe_ai_fleet.domain.event import CandidateScored, RunLost
from swe_ai_fleet.domain.memory import VERIFIER_MODEL, VERIFIER_SCORE, WorkOutcome
from swe_ai_fleet.domain.review import VerifierScore
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.judging import Verifier
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
    world = World(verifier=Verifier(outcomes=lambda _: ()), **more)
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


async def test_scores_are_calibrated_by_what_people_said_of_earlier_ones() -> None:
    scored = {VERIFIER_SCORE: "0.900000", VERIFIER_MODEL: "m"}
    disliked = [WorkOutcome(subject_id=f"e{n}", rating=1, metadata=scored) for n in range(500)]
    world = a_world()
    world.verifier = Verifier(outcomes=lambda tenant: disliked if tenant == DEFAULT_TENANT else ())
    state = await world.run(a_task(rounds=0))
    assert state.scores[TWO].raw == 0.9
    assert (state.scores[TWO].outcomes, state.scores[ONE].outcomes) == (500, 500)
    assert state.scores[TWO].score is not None
    assert state.scores[TWO].score < 0.1
    assert {one.verifier for one in state.ranking if one.accepted} == {
        round(state.scores[name].score or 0.0, 4) for name in (ONE, TWO)
    }

    def unavailable(tenant: str) -> tuple[WorkOutcome, ...]:
        raise Unavailable("the bucket does not answer")

    # Few of them, and such as cannot be had, leave scores as they are.
    for outcomes in (lambda _: disliked[:1], unavailable):
        world = a_world()
        world.verifier = Verifier(outcomes=outcomes)
        assert (await world.run(a_task(rounds=0))).scores[TWO].score == 0.9
