"""The state is a function of what each writer said, not of how the log happened to interleave them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.errors import AgentLost
from swe_ai_fleet.domain.execution import ExecutionState, advance, fold
from swe_ai_fleet.domain.run import fold_run
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from tests.scripted_fleet import FAILED, ScriptedRun
from tests.unit.test_executions import World, a_task, published

Scene = Callable[[World], Awaitable[str]]


async def plain(world: World) -> str:
    """One agent is slow, one fails its checks, one loses every process."""
    world.fleet.runs = {
        "agent-dev-1": ScriptedRun(operations=3),
        "agent-dev-2": ScriptedRun(checks=(FAILED,), stop_reason=StopReason.MAX_ITERATIONS),
        "agent-dev-3": ScriptedRun(fault=AgentLost("its host died")),
    }
    return await driven(world, a_task(rounds=2))


async def delivered(world: World) -> str:
    return await driven(world, a_task(kind=TaskKind.ORCHESTRATE, num_agents=2, architect_top_k=2))


async def driven(world: World, task: Task) -> str:
    async with world.running() as executions:
        name = (await executions.submit(task)).execution_id
        await published(executions, name)
    return name


async def approved(world: World) -> str:
    world.fleet.runs = {"agent-dev-1": ScriptedRun(asks=2), "agent-dev-2": ScriptedRun(asks=1)}
    async with world.running() as executions:
        name = (await executions.submit(a_task())).execution_id
        for approval_id, word in (
            ("agent-dev-1.1", ApprovalDecision.APPROVED),
            ("agent-dev-2.1", ApprovalDecision.REJECTED),
            ("agent-dev-1.2", ApprovalDecision.APPROVED),
        ):
            while approval_id not in (await executions.get(DEFAULT_TENANT, name)).requests:
                await asyncio.sleep(0)
            said = ApprovalResolution(approval_id=approval_id, decision=word, approver="ada")
            await executions.resolve(DEFAULT_TENANT, name, said)
        await published(executions, name)
    return name


async def cancelled(world: World) -> str:
    world.fleet.runs = {"agent-dev-2": ScriptedRun(after=asyncio.Event())}
    async with world.running() as executions:
        name = (await executions.submit(a_task())).execution_id
        await world.fleet.started(3)
        await executions.cancel(DEFAULT_TENANT, name, "enough")
        await published(executions, name)
    return name


async def taken_over(world: World) -> str:
    """The first orchestrator leaves in the middle, the second goes on; then a third finds nothing to do."""
    gate = asyncio.Event()
    world.fleet.runs = {name: ScriptedRun(after=gate, operations=2) for name in ("agent-dev-1", "agent-dev-2")}
    async with world.running(owner="one") as executions:
        name = (await executions.submit(a_task())).execution_id
        await world.fleet.started(3)
    gate.set()
    for owner in ("two", "three"):
        async with world.running(owner=owner) as executions:
            await published(executions, name)
    return name


SCENES: tuple[Scene, ...] = (plain, delivered, approved, cancelled, taken_over)


@cache
def recording(scene: Scene) -> list[ev.StoredEvent]:
    """The events of a scene, in the order of the log."""

    async def record() -> list[ev.StoredEvent]:
        world = World()
        name = await scene(world)
        return [stored async for stored in world.log.read(DEFAULT_TENANT, name)]

    return asyncio.run(record())


scenes = st.sampled_from(SCENES)
randoms = st.randoms(use_true_random=False)


def whole(events: list[ev.StoredEvent]) -> ExecutionState:
    state = fold(events)
    assert state is not None
    return state


def told(state: ExecutionState | None) -> ExecutionState | None:
    """The state without where and when its last event stood."""
    return replace(state, last_sequence=0, updated_at="") if state else None


def about(stored: ev.StoredEvent, askers: dict[str, str]) -> set[str]:
    """Whom an event is about: its own subject, and the runs that the execution or a caller says something of."""
    body = stored.event.body
    subjects = {stored.event.agent_id}
    match body:
        case ev.CandidateSubmitted(candidate=candidate):
            subjects.add(candidate.agent_id)
        case ev.RunLost(lost_agent_id=agent_id) | ev.RunReassigned(lost_agent_id=agent_id):
            subjects.add(agent_id)
        case ev.ApprovalAwaited(request=request) | ev.ApprovalRequested(request=request):
            subjects.add(request.agent_id)
        case ev.ApprovalResolved(resolution=resolution):
            subjects.add(askers[resolution.approval_id])
        case _:
            pass
    return subjects


def depends(later: ev.StoredEvent, earlier: ev.StoredEvent, askers: dict[str, str]) -> bool:
    """Whether two events of the log can only have come in this order: one could know of the other."""
    ends = (ev.ExecutionStarted, ev.ExecutionFinished)
    if isinstance(later.event.body, ends) or isinstance(earlier.event.body, ends):
        return True
    return bool(about(later, askers) & about(earlier, askers))


def another_order(events: list[ev.StoredEvent], random: Random) -> list[ev.StoredEvent]:
    """The events as the log might as well have stored them: what depends on each other keeps its order.

    Such orders are the linear extensions of one trace (Mazurkiewicz, Concurrent program schemes, 1977).
    """
    askers = {
        stored.event.body.request.approval_id: stored.event.agent_id
        for stored in events
        if isinstance(stored.event.body, ev.ApprovalRequested)
    }
    before = {
        later.sequence: {earlier.sequence for earlier in events[:place] if depends(later, earlier, askers)}
        for place, later in enumerate(events)
    }
    left = {stored.sequence: stored for stored in events}
    ordered: list[ev.StoredEvent] = []
    while left:
        ready = [sequence for sequence in left if not before[sequence] & left.keys()]
        ordered.append(left.pop(random.choice(ready)))
    return [replace(stored, sequence=number) for number, stored in enumerate(ordered, start=1)]


@settings(max_examples=50)
@given(scenes, randoms)
def test_another_order_of_independent_events_is_the_same_execution(scene: Scene, random: Random):
    events = recording(scene)
    assert told(fold(another_order(events, random))) == told(fold(events))


@settings(max_examples=25)
@given(scenes, randoms)
def test_a_run_is_the_same_whatever_stands_between_its_events(scene: Scene, random: Random):
    events = recording(scene)
    other = another_order(events, random)
    for agent_id in {stored.event.agent_id for stored in events} - {ev.EXECUTION_SUBJECT, ev.CONTROL_SUBJECT}:
        first, second = (fold_run([stored.event for stored in one], agent_id) for one in (events, other))
        assert first == second
        own = [stored.event for stored in events if stored.event.agent_id in (agent_id, ev.CONTROL_SUBJECT, "_")]
        assert fold_run(own, agent_id) == first


@settings(max_examples=25)
@given(scenes, randoms)
def test_events_heard_again_change_nothing_and_a_fold_can_be_continued_anywhere(scene: Scene, random: Random):
    events = recording(scene)
    cut = random.randrange(len(events) + 1)
    state, begin = fold(events[:cut]), max(0, cut - 2)
    for place, stored in enumerate(events[begin:], begin):
        state = advance(state, stored)
        for again in random.sample(events[: place + 1], k=min(3, place + 1)):
            assert advance(state, again) == state
    assert state == fold(events)
