"""The state of a story: a fold over its changes and nothing else."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.context import (
    Decision,
    DecisionAdded,
    DecisionState,
    Phase,
    PhaseChanged,
    StoredChange,
    Story,
    StoryCreated,
    StoryTask,
    StoryUpdated,
    TaskCreated,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStep:
    """A story entered a phase. `version` is that of the story from then on."""

    phase: Phase
    at: str
    version: int
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryState:
    """A story with its tasks and decisions (in the order in which they were made) and the phases it went through.

    `story` is None for items that belong to no story. `version` counts its changes, without records of work. `places`
    has the sequence number of the last change of each node (`task:<id>`); `changed_at` is the time of the last change.
    """

    story_id: str
    version: int = 0
    story: Story | None = None
    tasks: Mapping[str, StoryTask] = field(default_factory=dict[str, StoryTask])
    decisions: Mapping[str, Decision] = field(default_factory=dict[str, Decision])
    phases: tuple[PhaseStep, ...] = ()
    places: Mapping[str, int] = field(default_factory=dict[str, int])
    changed_at: str = ""


def advance(state: StoryState, stored: StoredChange) -> StoryState:
    """A story after one more of its changes; a change of something that does not exist has no effect."""
    change = stored.change
    state = replace(state, version=change.version, changed_at=change.at)
    match change.body:
        case StoryCreated(story=story):
            step = PhaseStep(phase=story.phase, at=change.at, version=change.version)
            state = replace(state, story=story, phases=(*state.phases, step))
        case TaskCreated(task=task):
            state = replace(state, tasks={**state.tasks, task.task_id: task})
            return _placed(state, f"task:{task.task_id}", stored.sequence)
        case DecisionAdded(decision=decision):
            return _decided(state, decision, stored.sequence)
        case PhaseChanged(phase=phase) if state.story is not None:
            step = PhaseStep(
                phase=phase, at=change.at, version=change.version, reason=change.body.reason, by=change.body.by
            )
            story = replace(state.story, phase=phase, updated_at=change.at)
            state = replace(state, story=story, phases=(*state.phases, step))
        case StoryUpdated(decision_id=decision_id, decision_state=decided) if decision_id:
            decision = state.decisions.get(decision_id)
            if decision is None or decided is None:
                return state
            return _decided(state, replace(decision, state=decided), stored.sequence)
        case StoryUpdated(task_id=task_id) if task_id:
            task = state.tasks.get(task_id)
            if task is None:
                return state
            tasks = {**state.tasks, task_id: updated_task(task, change.body, change.at)}
            return _placed(replace(state, tasks=tasks), f"task:{task_id}", stored.sequence)
        case StoryUpdated() if state.story is not None:
            state = replace(state, story=updated_story(state.story, change.body, change.at))
        case _:
            return state
    return _placed(state, f"story:{state.story_id}", stored.sequence)


def _decided(state: StoryState, decision: Decision, sequence: int) -> StoryState:
    """A story with a decision. The decision that it supersedes holds until it is accepted itself."""
    decisions = {**state.decisions, decision.decision_id: decision}
    old = decisions.get(decision.supersedes)
    if old is not None and decision.state is DecisionState.ACCEPTED:
        decisions[old.decision_id] = replace(old, state=DecisionState.SUPERSEDED)
    return _placed(replace(state, decisions=decisions), f"decision:{decision.decision_id}", sequence)


def _placed(state: StoryState, node: str, sequence: int) -> StoryState:
    return replace(state, places={**state.places, node: sequence})


def unchanged(state: StoryState, update: StoryUpdated) -> bool:
    """Whether an update leaves a story, its tasks and its decisions as they are, but for the time."""
    decision = state.decisions.get(update.decision_id)
    if decision is not None:
        return decision.state is update.decision_state
    task = state.tasks.get(update.task_id)
    if task is not None:
        return updated_task(task, update, task.updated_at) == task
    return state.story is not None and updated_story(state.story, update, state.story.updated_at) == state.story


def updated_story(story: Story, update: StoryUpdated, at: str) -> Story:
    """A story after an update."""
    notes = {name: text for name, text in {**story.notes, **update.notes}.items() if text}
    return replace(
        story,
        title=story.title if update.title is None else update.title,
        description=story.description if update.description is None else update.description,
        acceptance_criteria=(
            story.acceptance_criteria if update.acceptance_criteria is None else update.acceptance_criteria
        ),
        notes=notes,
        updated_at=at,
    )


def updated_task(task: StoryTask, update: StoryUpdated, at: str) -> StoryTask:
    """A task after an update."""
    return replace(
        task,
        title=task.title if update.title is None else update.title,
        description=task.description if update.description is None else update.description,
        role=task.role if update.role is None else update.role or None,
        state=task.state if update.state is None else update.state,
        depends_on=task.depends_on if update.depends_on is None else update.depends_on,
        updated_at=at,
    )


def in_order(tasks: Iterable[StoryTask]) -> tuple[StoryTask, ...]:
    """Tasks with those that they depend on first, otherwise as given; what is not among them counts as done.

    Kahn's algorithm, taking the first that can come next. Tasks on a cycle come last, as given.
    """
    given = list(tasks)
    places = {task.task_id: place for place, task in enumerate(given)}
    missing = [{places[other] for other in task.depends_on if other in places} for task in given]
    followers: dict[int, list[int]] = {}
    for place, others in enumerate(missing):
        for other in others:
            followers.setdefault(other, []).append(place)
    heap = [place for place, others in enumerate(missing) if not others]
    ordered: list[int] = []
    while heap:
        place = heapq.heappop(heap)
        ordered.append(place)
        for follower in followers.get(place, ()):
            missing[follower].discard(place)
            if not missing[follower]:
                heapq.heappush(heap, follower)
    taken = set(ordered)
    return tuple(given[place] for place in (*ordered, *(place for place in range(len(given)) if place not in taken)))
