"""As many candidates as are needed: further agents begin while no candidate is convincing."""

from __future__ import annotations

import asyncio
from typing import Any

from swe_ai_fleet.domain.event import CandidateSubmitted, RunStopped
from swe_ai_fleet.domain.trajectory import StopReason
from tests.scripted_fleet import FAILED, PASSED, PROVEN, ScriptedRun
from tests.unit.test_executions import World, a_task
from tests.unit.test_peer_review import taken_over

NAMES = [f"agent-dev-{number}" for number in range(1, 6)]


def begun(world: World) -> list[str]:
    return [one.agent_id for one in world.fleet.begun if one.revision is None]


async def test_what_existing_tests_show_needs_no_second_candidate() -> None:
    world = World()
    world.fleet.default = ScriptedRun(checks=(PROVEN,))
    state = await world.run(a_task(num_agents=1, max_agents=5))
    assert (begun(world), state.winner_id) == (NAMES[:1], NAMES[0])


async def test_agents_begin_as_many_as_there_are_until_there_are_no_more() -> None:
    world = World()
    state = await world.run(a_task(num_agents=1, max_agents=5, rounds=0))
    assert sorted(begun(world)) == NAMES
    assert len(state.ranking) == 5
    told = {one.agent_id: one.background for one in world.fleet.begun}
    # Waves of one, one, two and one: each is told of all those before it.
    assert told[NAMES[0]] == ""
    assert told[NAMES[2]] == told[NAMES[3]]
    for at, name in ((1, NAMES[1]), (2, NAMES[2]), (4, NAMES[4])):
        assert told[name].count("its summary: ") == at
        assert "unverified" in told[name]


async def test_whoever_takes_over_begins_nobody_twice_and_nobody_more() -> None:
    def scripted(**more: Any) -> World:
        world = World(**more)
        checks = zip(NAMES, (FAILED, PASSED, PROVEN), strict=False)
        world.fleet.runs = {name: ScriptedRun(checks=(check,)) for name, check in checks}
        return world

    whole, task = scripted(), a_task(num_agents=1, max_agents=5, rounds=0)
    done = await whole.run(task)
    assert (sorted(done.candidates), done.winner_id) == (NAMES[:4], NAMES[2])
    async for count, world, state, before in taken_over(whole.log, scripted, task):
        there = {body.candidate.candidate_id for body in before if isinstance(body, CandidateSubmitted)}
        assert (sorted(state.candidates), state.winner_id) == (NAMES[:4], NAMES[2]), count
        assert not there & set(begun(world)), count


async def test_who_has_nothing_left_to_win_is_stopped_and_the_log_says_why() -> None:
    def scripted(**more: Any) -> World:
        # The third of a wave of two convinces while the fourth still works.
        world = World(**more)
        runs = ScriptedRun(), ScriptedRun(), ScriptedRun(checks=(PROVEN,)), ScriptedRun(after=asyncio.Event())
        world.fleet.runs = dict(zip(NAMES, runs, strict=False))
        return world

    whole, task = scripted(), a_task(num_agents=1, max_agents=5, rounds=0)
    done = await whole.run(task)
    assert whole.fleet.cancelled == [NAMES[3]]
    assert (sorted(done.candidates), done.winner_id) == (NAMES[:3], NAMES[2])
    assert dict(done.stopped) == {NAMES[3]: f"{NAMES[2]} is convincing; no further candidate is needed"}
    assert (done.agents[NAMES[3]].status, done.agents[NAMES[3]].stop_reason) == ("finished", StopReason.CANCELLED)
    # Its tool operation counts among those of the execution, as those of three candidates do.
    assert done.usage.tool_calls == 4
    # Whoever takes over stops it, too, or knows that it was.
    stopped = next(n for n, event in enumerate(whole.log.events, 1) if isinstance(event.body, RunStopped))
    async for count, world, state, _ in taken_over(whole.log, scripted, task, stopped - 3):
        assert (sorted(state.candidates), state.winner_id, set(state.stopped)) == (NAMES[:3], NAMES[2], {NAMES[3]})
        assert state.usage.tool_calls == 4, count
        assert NAMES[3] not in begun(world) or count < stopped, count
