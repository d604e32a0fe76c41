"""A driver is replaced at the worst moment: what is left is done, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from swe_ai_fleet.domain.event import (
    CandidateSubmitted,
    ExecutionClaimed,
    ExecutionFinished,
    ResultPublished,
    RunClaimed,
    ToolStarted,
)
from swe_ai_fleet.orchestrator.leases import over
from tests.simulation.protocol import AGENTS, Replica, World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.accept(0)
    for name in ("first", "second"):
        world.replicas[name] = Replica(world, name)
        world.alive.add(name)
    yield world
    world.close()


def take(world: World, name: str) -> tuple[Replica, str]:
    """A replica that has heard everything, and claims the only execution there is."""
    [execution] = world.tasks
    replica = world.replicas[name]
    replica.look()
    replica.deliver(execution)
    assert replica.may_claim(execution)
    replica.claim(execution)
    return replica, execution


def drive(replica: Replica, execution: str, until: Callable[[], bool]) -> None:
    while execution in replica.drives and not until():
        replica.step(execution)
        for run in replica.world.runs:
            if not run.over:
                run.step()


def has(world: World, execution: str, kind: type) -> Callable[[], bool]:
    return lambda: any(isinstance(stored.event.body, kind) for stored in world.history[execution])


@pytest.mark.parametrize("reached", [CandidateSubmitted, ExecutionFinished, ResultPublished])
def test_who_claims_on_old_knowledge_does_what_is_left_and_no_more(world: World, reached: type):
    first, execution = take(world, "first")
    drive(first, execution, has(world, execution, ExecutionClaimed))
    second = world.replicas["second"]
    second.deliver(execution)
    drive(first, execution, has(world, execution, reached))
    # The first falls asleep; the second has heard nothing since its claim.
    world.alive.remove("first")
    second.look()
    assert second.may_claim(execution)
    second.claim(execution)
    drive(second, execution, lambda: False)
    drive(first, execution, lambda: False)
    bodies = [type(stored.event.body) for stored in world.heads[execution]]
    for once in (ExecutionFinished, ResultPublished):
        assert bodies.count(once) == 1
    assert bodies.count(CandidateSubmitted) == len(AGENTS)
    assert len(world.log.results) == 1
    assert set(world.effects.values()) == {1}
    assert first.drives == {}


def test_a_result_that_was_told_but_not_noted_is_not_told_again(world: World):
    first, execution = take(world, "first")
    drive(first, execution, lambda: bool(world.log.results))
    del first.drives[execution]
    world.alive.remove("first")
    second, _ = take(world, "second")
    drive(second, execution, lambda: False)
    assert len(world.log.results) == 1
    assert world.state(execution).result_published


def test_an_agent_whose_orchestrator_is_gone_works_on_until_its_run_is_claimed(world: World):
    first, execution = take(world, "first")
    drive(first, execution, has(world, execution, ToolStarted))
    [old] = world.runs
    world.alive.remove("first")
    second, _ = take(world, "second")
    while len(world.runs) < 2 or world.runs[1].generation not in generations(world, execution):
        second.step(execution)
        for run in world.runs[1:]:
            run.step()
    while not old.over:
        old.step()
    assert old.fenced
    drive(second, execution, lambda: False)
    assert over(world.state(execution))
    assert set(world.effects.values()) == {1}


def generations(world: World, execution: str) -> list[int]:
    return [s.event.body.generation for s in world.history[execution] if isinstance(s.event.body, RunClaimed)]
