"""Outcomes kept and what they recommend, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import VERDICT, WorkOutcome
from swe_ai_fleet.extensions.knowledge.tracker import LearningTracker
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.extensions.knowledge.test_context_service import Service, service

__all__ = ["service"]

NOW = datetime.now(UTC)


def outcome(number: int = 0, **fields: object) -> WorkOutcome:
    plain = WorkOutcome(
        subject_id=f"e{number}", goal="Fix the crash", goal_type="fix", approach="deliberate", model_profile="small",
        agents=3, success=True, evidence=1.0, usage=Usage(prompt_tokens=1000), ended_at=NOW.isoformat(),
    )  # fmt: skip
    return replace(plain, **fields)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Learner:
    """A tenant, and what is recommended to it."""

    service: Service
    name: str = field(default_factory=lambda: f"t-{uuid4().hex[:8]}")

    async def tried(self, outcomes: Sequence[WorkOutcome]) -> None:
        for one in outcomes:
            await self.service.running.outcomes.record(replace(one, tenant=self.name))

    async def asks(self, **fields: object) -> pb.RecommendApproachResponse:
        request = pb.RecommendApproachRequest(**{"goal": "Fix the login bug"} | fields)  # type: ignore[arg-type]
        return await self.service.call(request, tenant=self.name)


@pytest.fixture
def learner(service: Service) -> Learner:
    return Learner(service)


async def test_nothing_known_is_said_so_and_bounds_are_wide(learner: Learner) -> None:
    found = await learner.asks(model_profiles=("small", "large"))
    profiles = found.model_profile
    assert (found.goal_type, found.outcomes, found.council.value) == ("fix", 0, "default")
    assert profiles.reason == "a trial: nothing is known yet"
    assert {one.value for one in profiles.options} == {"small", "large"}
    assert all(one.high - one.low > 0.7 for one in profiles.options)


async def test_little_tried_options_are_explored_now_and_then_but_not_often(learner: Learner) -> None:
    await learner.tried([outcome(number, model_profile="large", evidence=0.8, agents=0) for number in range(20)])
    advised = [(await learner.asks(model_profiles=("new",), seed=seed)).model_profile for seed in range(30)]
    trials = [one for one in advised if one.value == "new"]
    assert 1 <= len(trials) <= 18
    # Neither is sold as the other.
    for one in advised:
        word = "a trial: never tried, " if one in trials else "the best that is known: "
        assert one.reason.startswith(word) and "from 20 outcomes" in one.reason


async def test_old_outcomes_and_those_of_others_count_less(learner: Learner) -> None:
    old = (NOW - timedelta(days=365)).isoformat()
    fresh = outcome(0, approach="near", model_profile="a", repository="/app", role="QA")
    others = [
        {"approach": "elsewhere", "model_profile": "b", "repository": "/shop"},
        {"approach": "other role", "model_profile": "c", "role": "DEV"},
        {"approach": "old", "model_profile": "d", "ended_at": old},
        {"approach": "other goal", "model_profile": "e", "goal_type": "document"},
    ]
    await learner.tried([fresh, *(replace(fresh, subject_id=f"o{n}", **one) for n, one in enumerate(others))])
    found = await learner.asks(repository="/app", role=pb.ROLE_QA)
    tried = {one.value: one.tried for one in found.approach.options}
    assert tried == pytest.approx(
        {"near": 1, "elsewhere": 0.5, "other role": 0.5, "old": 0, "other goal": 0.25}, abs=0.02
    )


async def test_a_success_is_worth_more_the_better_it_is_proven_and_the_less_it_cost(learner: Learner) -> None:
    ways = {
        "proven": outcome(),
        "dear": outcome(usage=Usage(prompt_tokens=100_000)),
        "unverified": outcome(metadata={VERDICT: "unverified"}),
        "failed": outcome(success=False),
        "disliked": outcome(rating=1),
    }
    await learner.tried(
        [replace(one, approach=name, subject_id=f"{name}{n}") for name, one in ways.items() for n in range(20)]
    )
    expected = {one.value: one.expected for one in (await learner.asks()).approach.options}
    assert sorted(expected, key=expected.__getitem__, reverse=True)[:2] == ["proven", "dear"]
    assert expected["dear"] > expected["unverified"] > expected["failed"]
    # Ratings of people outweigh evidence.
    assert expected["unverified"] > expected["disliked"]


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
        ("metadata", {"metadata": {str(number): "" for number in range(100)}}),
        ("usage.cost", {"usage": Usage(cost=float("inf"))}),
    ]
    async with LearningTracker(MemoryKeyValue()) as tracker:
        for named, fields in wrong:
            with pytest.raises(InvalidRequest) as refused:
                await tracker.record(outcome(1, **fields))
            assert refused.value.field == named
        assert tracker.outcomes() == []
