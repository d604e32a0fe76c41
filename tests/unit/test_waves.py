"""As many candidates as are needed, and a checklist of the statement that decides beside them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from swe_ai_fleet.domain.assignment import Answer, AnswerAssignment, ExamineAssignment
from swe_ai_fleet.domain.candidate import CheckKind, CheckResult, Verdict
from swe_ai_fleet.domain.errors import AgentLost
from swe_ai_fleet.domain.event import CandidateSubmitted, RunStopped
from swe_ai_fleet.domain.examination import STATEMENT, Examination
from swe_ai_fleet.domain.examination import TestSet as ExaminedTests
from swe_ai_fleet.domain.task import ApprovalPolicy, Task
from swe_ai_fleet.domain.test_run import Crossing, ForeignFailure
from swe_ai_fleet.domain.trajectory import StopReason
from tests.scripted_fleet import FAILED, PASSED, PROVEN, ScriptedRun
from tests.tables import table
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


ONE = {"quote": "Add hello_world()", "probe": "true"}
SAID = json.dumps({"requirements": [ONE, ONE | {"quote": "hello_world() to utils.py"}]})
RAN = CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=True, score=1.0)


def answer(text: str, error: str = "") -> Answer:
    return Answer(text=text, error=error, stop_reason=StopReason.FINAL_ANSWER)


def says(text: str) -> Callable[[AnswerAssignment], Awaitable[Answer]]:
    async def said(assignment: AnswerAssignment) -> Answer:
        assert (assignment.agent_id, assignment.task.context) == ("checklist", "")
        return answer(text)

    return said


def passed_by(*names: str) -> Callable[[ExamineAssignment], Examination]:
    """The probes fail on the untouched commit and on every candidate but these."""

    def examining(assignment: ExamineAssignment) -> Examination:
        tests = tuple(one.name for one in assignment.requirements)
        crossings = [
            Crossing(candidate_id=name, passed=tests)
            if name in names
            else Crossing(candidate_id=name, failed=tuple(ForeignFailure(test=test) for test in tests))
            for name in [one.candidate_id for one in assignment.examinees] or ["untouched"]
        ]
        return Examination(sets=(ExaminedTests(candidates=(STATEMENT,), tests=tests, crossings=tuple(crossings)),))

    return examining


def probing(world: World, *names: str, text: str = SAID) -> World:
    world.fleet.default = ScriptedRun(checks=(RAN,))
    world.fleet.answering = says(text)
    world.fleet.examining = passed_by(*names)
    return world


def probed(**fields: object) -> Task:
    return a_task(description="Add hello_world() to utils.py", probes=True, rounds=0, **fields)


async def test_who_passes_a_probe_that_the_untouched_commit_fails_wins() -> None:
    world = probing(World(), NAMES[2])
    state = await world.run(probed(num_agents=3))
    assert (state.winner_id, state.verdict) == (NAMES[2], Verdict.VERIFIED)
    assert state.checklist is not None and [one.met_before for one in state.checklist.requirements] == [False] * 2
    assert "passes 2 of 2 probes of the statement" in state.ranking[0].reason
    # Once on the untouched commit, once on all candidates.
    assert [len(one.examinees) for one in world.fleet.examined] == [0, 3]


async def test_one_candidate_is_enough_where_it_passes_and_another_begins_where_it_does_not() -> None:
    world = probing(World(), *NAMES)
    assert (await world.run(probed(num_agents=1, max_agents=3))).winner_id == NAMES[0]
    assert begun(world) == NAMES[:1]
    world = probing(World(), NAMES[1])
    assert (await world.run(probed(num_agents=1, max_agents=3))).winner_id == NAMES[1]
    assert begun(world) == NAMES[:2]
    # Who begins later is told what is missing, and not how it is looked for.
    told = world.fleet.begun[1].background
    assert 'fails "Add hello_world()"' in told
    assert "`true`" not in told


@table(("text", "error"), [("I don't know", "not a JSON object"), ("", "no more tokens"), (None, "its host died")])
async def test_an_answer_that_is_none_costs_nobody_anything(text: str | None, error: str) -> None:
    async def failing(assignment: AnswerAssignment) -> Answer:
        if text is None:
            raise AgentLost("its host died")
        return answer(text, "no more tokens")

    world = probing(World())
    world.fleet.answering = failing
    state = await world.run(probed(num_agents=2))
    assert state.checklist is not None and error in state.checklist.error
    assert (state.winner_id, world.fleet.examined) == (NAMES[0], [])


@table("fields", [{"probes": False}, {"enable_tools": False}, {"approval": ApprovalPolicy.RISKY}])
async def test_nobody_is_asked_where_none_is_wanted_or_commands_may_not_run(fields: dict[str, object]) -> None:
    world = probing(World())
    state = await world.run(replace(probed(num_agents=1), **fields))
    assert (world.fleet.asked, state.checklist) == ([], None)
