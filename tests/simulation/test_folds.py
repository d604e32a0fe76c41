"""The state is a function of what each writer said, not of how the log happened to interleave them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    EXECUTION_SUBJECT,
    ApprovalAwaited,
    ApprovalRequested,
    ApprovalResolved,
    CandidateSubmitted,
    ExecutionFinished,
    ExecutionStarted,
    RunLost,
    RunReassigned,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance, fold
from swe_ai_fleet.domain.run import fold_run
from tests.simulation.recordings import SCENES, Scene, recorded, taken_over

recording = cache(recorded)
scenes = st.sampled_from(SCENES)
randoms = st.randoms(use_true_random=False)


def whole(events: list[StoredEvent]) -> ExecutionState:
    state = fold(events)
    assert state is not None
    return state


def told(state: ExecutionState | None) -> ExecutionState | None:
    """The state without where and when its last event stood."""
    return replace(state, last_sequence=0, updated_at="") if state else None


def about(stored: StoredEvent, askers: dict[str, str]) -> set[str]:
    """Whom an event is about: its own subject, and the runs that the execution or a caller says something of."""
    body = stored.event.body
    subjects = {stored.event.agent_id}
    match body:
        case CandidateSubmitted(candidate=candidate):
            subjects.add(candidate.agent_id)
        case RunLost(lost_agent_id=agent_id) | RunReassigned(lost_agent_id=agent_id):
            subjects.add(agent_id)
        case ApprovalAwaited(request=request) | ApprovalRequested(request=request):
            subjects.add(request.agent_id)
        case ApprovalResolved(resolution=resolution):
            subjects.add(askers[resolution.approval_id])
        case _:
            pass
    return subjects


def depends(later: StoredEvent, earlier: StoredEvent, askers: dict[str, str]) -> bool:
    """Whether two events of the log can only have come in this order: one could know of the other."""
    ends = (ExecutionStarted, ExecutionFinished)
    if isinstance(later.event.body, ends) or isinstance(earlier.event.body, ends):
        return True
    return bool(about(later, askers) & about(earlier, askers))


def another_order(events: list[StoredEvent], random: Random) -> list[StoredEvent]:
    """The events as the log might as well have stored them: what depends on each other keeps its order.

    Such orders are the linear extensions of one trace (Mazurkiewicz, Concurrent program schemes, 1977).
    """
    askers = {
        stored.event.body.request.approval_id: stored.event.agent_id
        for stored in events
        if isinstance(stored.event.body, ApprovalRequested)
    }
    before = {
        later.sequence: {earlier.sequence for earlier in events[:place] if depends(later, earlier, askers)}
        for place, later in enumerate(events)
    }
    left = {stored.sequence: stored for stored in events}
    ordered: list[StoredEvent] = []
    while left:
        ready = [sequence for sequence in left if not before[sequence] & left.keys()]
        ordered.append(left.pop(random.choice(ready)))
    return [replace(stored, sequence=number) for number, stored in enumerate(ordered, start=1)]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_recordings_are_whole(scene: Scene):
    events = recording(scene)
    state = whole(events)
    assert state.status.terminal
    assert state.result_published
    subjects = {stored.event.agent_id for stored in events}
    assert {EXECUTION_SUBJECT, "agent-dev-1", "agent-dev-2"} <= subjects
    assert (CONTROL_SUBJECT in subjects) == (scene.__name__ in ("approved", "cancelled"))


@settings(max_examples=100)
@given(scenes, randoms)
def test_another_order_of_independent_events_is_the_same_execution(scene: Scene, random: Random):
    events = recording(scene)
    assert told(fold(another_order(events, random))) == told(fold(events))


@settings(max_examples=50)
@given(scenes, randoms)
def test_a_run_is_the_same_whatever_stands_between_its_events(scene: Scene, random: Random):
    events = recording(scene)
    other = another_order(events, random)
    for agent_id in {stored.event.agent_id for stored in events} - {EXECUTION_SUBJECT, CONTROL_SUBJECT}:
        first, second = (fold_run([stored.event for stored in one], agent_id) for one in (events, other))
        assert first == second
        own = [stored.event for stored in events if stored.event.agent_id in (agent_id, CONTROL_SUBJECT, "_")]
        assert fold_run(own, agent_id) == first


@settings(max_examples=50)
@given(scenes, randoms)
def test_events_heard_again_change_nothing(scene: Scene, random: Random):
    state: ExecutionState | None = None
    events = recording(scene)
    for place, stored in enumerate(events):
        state = advance(state, stored)
        for again in random.sample(events[: place + 1], k=min(3, place + 1)):
            assert advance(state, again) == state
    assert state == fold(events)


@settings(max_examples=50)
@given(scenes, st.data())
def test_to_stop_and_go_on_is_the_same_as_to_go_through(scene: Scene, data: st.DataObject):
    events = recording(scene)
    cut = data.draw(st.integers(0, len(events)))
    state = fold(events[:cut])
    for stored in events[max(0, cut - 2) :]:
        state = advance(state, stored)
    assert state == fold(events)


def claims() -> Iterator[int]:
    for stored in recording(taken_over):
        if stored.event.agent_id == EXECUTION_SUBJECT:
            yield int(stored.event.id.split("/")[-2])


def test_generations_only_grow_and_the_second_owner_ended_it():
    generations = list(claims())
    assert generations == sorted(generations)
    state = whole(recording(taken_over))
    assert (state.owner, state.generation) == ("two", 2)
