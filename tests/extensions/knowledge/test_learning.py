"""Outcomes kept and what they recommend."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import VERDICT, Outcome
from swe_ai_fleet.extensions.knowledge.recommending import Question, recommend
from swe_ai_fleet.extensions.knowledge.tracker import LearningTracker
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.tables import table

NOW = "2026-11-22T12:00:00+00:00"


def outcome(number: int = 0, **fields: object) -> Outcome:
    plain = Outcome(
        subject_id=f"e{number}", goal="Fix the crash", goal_type="fix", approach="deliberate", model_profile="small",
        agents=3, success=True, evidence=1.0, usage=Usage(prompt_tokens=1000), ended_at=NOW,
    )  # fmt: skip
    return replace(plain, **fields)  # type: ignore[arg-type]


def question(**fields: object) -> Question:
    return replace(Question(goal="Fix the login bug", now=NOW), **fields)  # type: ignore[arg-type]


def test_nothing_known_is_said_so_and_bounds_are_wide() -> None:
    found = recommend(question(model_profiles=("small", "large")), [])
    profiles = found.model_profile
    assert (found.goal_type, found.outcomes, found.council.value) == ("fix", 0, "default")
    assert profiles.reason == "a trial: nothing is known yet"
    assert {one.value for one in profiles.options} == {"small", "large"}
    assert all(one.high - one.low > 0.7 for one in profiles.options)


def test_little_tried_options_are_explored_now_and_then_but_not_often() -> None:
    tried = [outcome(number, model_profile="large", evidence=0.8, agents=0) for number in range(20)]
    asked = question(model_profiles=("new",), agents=())
    advised = [recommend(replace(asked, seed=seed), tried).model_profile for seed in range(30)]
    trials = [one for one in advised if one.value == "new"]
    assert 1 <= len(trials) <= 18
    # Neither is sold as the other.
    for one in advised:
        word = "a trial: never tried, " if one in trials else "the best that is known: "
        assert one.reason.startswith(word) and "0.78" in one.reason and "from 20 outcomes" in one.reason


@table(("name", "here", "there"), [("repository", "/app", "/shop"), ("role", "QA", "DEV")])
def test_what_was_tried_elsewhere_or_by_others_counts_less(name: str, here: str, there: str) -> None:
    tried = [outcome(number, approach="deliberate", **{name: here}) for number in range(10)]
    tried += [outcome(50 + number, approach="orchestrate", **{name: there}) for number in range(10)]
    near, far = recommend(question(**{name: here}), tried).approach.options
    assert (near.value, near.tried, far.value, far.tried) == ("deliberate", 10.0, "orchestrate", 5.0)
    assert {one.tried for one in recommend(question(), tried).approach.options} == {10.0}


def test_ratings_of_people_outweigh_evidence() -> None:
    praised = [outcome(number, approach="orchestrate", evidence=0.5, rating=5) for number in range(20)]
    disliked = [outcome(50 + number, approach="deliberate", evidence=1.0, rating=1) for number in range(20)]
    assert recommend(question(), [*praised, *disliked]).approach.value == "orchestrate"


def test_a_success_is_worth_more_the_better_it_is_proven_and_the_less_it_cost() -> None:
    ways = {
        "proven": outcome(),
        "dear": outcome(usage=Usage(prompt_tokens=100_000)),
        "unverified": outcome(metadata={VERDICT: "unverified"}),
        "failed": outcome(success=False),
    }
    tried = [replace(one, approach=name, subject_id=f"{name}{n}") for name, one in ways.items() for n in range(20)]
    expected = {one.value: one.expected for one in recommend(question(), tried).approach.options}
    assert sorted(expected, key=expected.__getitem__, reverse=True)[:2] == ["proven", "dear"]
    assert expected["dear"] > expected["unverified"] > expected["failed"]
    nothing_shown = [replace(one, evidence=0.0) for one in tried if one.approach == "proven"]
    shown = recommend(question(), nothing_shown).approach.options[0]
    assert abs(shown.expected - expected["unverified"]) < 0.1


def test_old_outcomes_and_other_goals_count_less() -> None:
    fresh = outcome(1, model_profile="a")
    old = outcome(2, model_profile="b", ended_at="2025-11-22T12:00:00+00:00")
    other = outcome(3, model_profile="c", goal_type="document")
    tried = {one.value: one.tried for one in recommend(question(), [fresh, old, other]).model_profile.options}
    assert tried == {"a": 1.0, "b": 0.01, "c": 0.25}


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            outcome,
            st.integers(0, 10**6),
            evidence=st.floats(0, 1),
            success=st.booleans(),
            rating=st.integers(0, 5),
            agents=st.integers(0, 9),
            ended_at=st.sampled_from([NOW, "", "nonsense", "2020-01-01T00:00:00", "2999-01-01T00:00:00+00:00"]),
        ),
        max_size=12,
    )
)
def test_beliefs_are_probabilities_whatever_was_recorded(tried: list[Outcome]) -> None:
    found = recommend(question(), tried)
    for advice in (found.council, found.model_profile, found.agents, found.approach):
        assert advice.value in {one.value for one in advice.options}
        assert abs(sum(one.best for one in advice.options) - 1) < 1e-9
        for one in advice.options:
            assert 0 <= one.low <= one.high <= 1
            assert 0 <= one.expected <= 1


async def test_an_outcome_is_kept_once_and_a_rating_survives_a_repeated_record() -> None:
    store = MemoryKeyValue()
    async with LearningTracker(store) as tracker:
        await tracker.record(outcome(1))
        await tracker.rate("default", "e1", 4, by="ana", comment="x" * 2_000)
        again = await tracker.record(outcome(1))
        assert (again.rating, again.rated_by, len(again.comment)) == (4, "ana", 2_000)
        await tracker.rate("default", "e1", 2, by="ben")
    async with LearningTracker(store) as reopened:
        assert [(one.subject_id, one.rating, one.rated_by) for one in reopened.outcomes()] == [("e1", 2, "ben")]


async def test_two_processes_learn_from_each_other_and_lose_no_rating() -> None:
    store = MemoryKeyValue()
    async with LearningTracker(store) as here, LearningTracker(store) as there:
        await here.record(outcome(1))
        await asyncio.gather(
            *(tracker.rate("default", "e1", rating) for rating in (1, 2, 3) for tracker in (here, there))
        )
        async with asyncio.timeout(5):
            while len(there.outcomes()) != 1:
                await asyncio.sleep(0)
        assert here.outcomes()[0] == await there.get("default", "e1")


async def test_secrets_are_masked_and_other_tenants_unseen() -> None:
    async with LearningTracker(MemoryKeyValue(), mask=lambda text: text.replace("hunter2", "***")) as tracker:
        await tracker.record(outcome(2, tenant="acme", subject_id="a/b c.ü"))
        texts = dict.fromkeys(("goal", "council", "rated_by"), "with hunter2") | {"repository": "https://hunter2@h/r"}
        told = outcome(1, agents_used=("hunter2",), metadata={"hunter2": "hunter2"}, **texts)
        assert (await tracker.record(told)).goal == "with ***"
        await tracker.rate("default", "e1", 3, by="hunter2", comment="hunter2 is in the log")
        assert (await tracker.get("default", "e1")).comment == "*** is in the log"
        assert "hunter2" not in repr(tracker.outcomes())
        assert [one.subject_id for one in tracker.outcomes("acme")] == ["a/b c.ü"]


async def test_malformed_outcomes_are_refused_by_field() -> None:
    wrong: list[tuple[str, dict[str, object]]] = [
        ("subject_id", {"subject_id": "x" * 129}),
        ("memory_share", {"memory_share": 1.5}),
        ("tool_share", {"memory_share": 0.6, "tool_share": 0.6}),
        ("rating", {"rating": 6}),
        ("agents_used", {"agents_used": ("x",) * 5000}),
        ("metadata", {"metadata": {str(number): "" for number in range(100)}}),
        ("usage.cost", {"usage": Usage(cost=float("inf"))}),
    ]
    async with LearningTracker(MemoryKeyValue()) as tracker:
        for named, fields in wrong:
            with pytest.raises(InvalidRequest) as refused:
                await tracker.record(outcome(1, **fields))
            assert refused.value.field == named
        assert tracker.outcomes() == []
