"""The legal changes of a story. Pure functions; each raises a fault that names the field and has a hint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.budget import check_cost
from swe_ai_fleet.domain.context import (
    NO_STORY,
    ChangeBody,
    Decision,
    DecisionState,
    Phase,
    Story,
    StoryTask,
    StoryUpdated,
    WorkRecord,
)
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, NotFound, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.text import check_identifier, check_length
from swe_ai_fleet.extensions.knowledge.graph import ContextGraph
from swe_ai_fleet.extensions.knowledge.story import (
    MAX_ITEM_CHARS,
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    StoryState,
    check_items,
    check_notes,
    check_number,
    check_title,
)

MAX_STORIES = 100_000
"""The most stories of a tenant."""
MAX_TASKS = 500
MAX_DECISIONS = 500
"""The most tasks, and the most decisions, of a story."""
MAX_CHANGE_BYTES = 512 * 1024
"""The largest change as it is stored; the server accepts twice as much."""
_PHASES = tuple(Phase)
_OF: Mapping[str, tuple[str, ...]] = {
    "title": ("story", "task"),
    "description": ("story", "task"),
    "acceptance_criteria": ("story",),
    "notes": ("story",),
    "state": ("task",),
    "role": ("task",),
    "depends_on": ("task",),
    "decision_state": ("decision",),
}
"""The kinds of items that have each field of an update."""


def check_story(graph: ContextGraph, story: Story) -> None:
    """Whether a story can be created. Raises InvalidRequest, ResourceExhausted."""
    check_identifier(story.story_id, field="story_id")
    if story.case_id:
        check_identifier(story.case_id, field="case_id")
    check_title(story.title)
    check_length(story.description, MAX_TEXT_CHARS, field="description")
    check_items(story.acceptance_criteria, field="acceptance_criteria")
    check_notes(story.notes)
    if len(graph.stories) >= MAX_STORIES:
        raise ResourceExhausted(f"the limit of {MAX_STORIES} stories is reached", field="story_id")


def check_task(graph: ContextGraph, state: StoryState, task: StoryTask) -> None:
    """Whether a task can be added. Raises InvalidRequest, NotFound, AlreadyExists, ResourceExhausted.

    The dependencies of a new task exist before it, so there can be no cycle.
    """
    check_task_texts(task)
    if task.task_id in task.depends_on:
        raise InvalidRequest(f"task {task.task_id} depends on itself", field="depends_on", hint="leave it out")
    _check_known(state, task.depends_on, field="depends_on")
    elsewhere = [other.story_id for other in graph.tasks(task.task_id) if other.story_id != task.story_id]
    if elsewhere:
        raise AlreadyExists(f"story {elsewhere[0]} has a task {task.task_id}", field="task_id", hint="choose another")
    if len(state.tasks) >= MAX_TASKS:
        raise ResourceExhausted(f"story {state.story_id} has {MAX_TASKS} tasks, the limit", field="task_id")


def check_task_texts(task: StoryTask) -> None:
    """Whether a task is valid by itself. Raises InvalidRequest."""
    check_identifier(task.task_id, field="task_id")
    check_title(task.title)
    check_length(task.description, MAX_TEXT_CHARS, field="description")
    check_number(task.depends_on, field="depends_on")


def check_decision(graph: ContextGraph, state: StoryState, decision: Decision) -> None:
    """Whether a decision can be added. Raises as `check_task` does, PreconditionFailed (it is already superseded)."""
    check_decision_texts(decision)
    _check_known(state, decision.task_ids, field="task_ids")
    elsewhere = [old.story_id for old in graph.decisions(decision.decision_id) if old.story_id != decision.story_id]
    if elsewhere:
        where = "the project" if elsewhere[0] == NO_STORY else f"story {elsewhere[0]}"
        raise AlreadyExists(
            f"{where} has a decision {decision.decision_id}", field="decision_id", hint="choose another"
        )
    _check_supersedes(state, decision.supersedes)
    if len(state.decisions) >= MAX_DECISIONS:
        raise ResourceExhausted(f"story {state.story_id} has {MAX_DECISIONS} decisions, the limit", field="decision_id")


def check_decision_texts(decision: Decision) -> None:
    """Whether a decision is valid by itself. Raises InvalidRequest."""
    check_identifier(decision.decision_id, field="decision_id")
    check_title(decision.title)
    check_length(decision.rationale, MAX_TEXT_CHARS, field="rationale")
    check_items(decision.alternatives, field="alternatives")
    check_length(decision.decided_by, MAX_NAME_CHARS, field="decided_by")
    if decision.state is DecisionState.SUPERSEDED:
        raise InvalidRequest(
            "a new decision must be proposed or accepted",
            field="state",
            hint="the decision that it supersedes is marked as superseded automatically",
        )
    check_number(decision.task_ids, field="task_ids")


def check_phase(current: Phase, target: Phase, reason: str) -> None:
    """Whether a story may go from one phase to another: one on, or back with a reason. Raises PreconditionFailed."""
    distance = _PHASES.index(target) - _PHASES.index(current)
    if distance > 1:
        following = _PHASES[_PHASES.index(current) + 1]
        raise PreconditionFailed(
            f"a story in phase {current} cannot go directly to {target}",
            field="phase",
            hint=f"{following} is the next phase",
        )
    if distance < 0 and not reason.strip():
        raise PreconditionFailed(
            f"a reason is needed to go back from {current} to {target}", field="reason", hint="say why"
        )


def check_reason(reason: str, by: str) -> None:
    """Check a reason and its author. Raises InvalidRequest."""
    check_length(by, MAX_NAME_CHARS, field="by")
    check_length(reason, MAX_ITEM_CHARS, field="reason")


def check_update(state: StoryState, update: StoryUpdated) -> None:
    """Check an update of a story, one of its tasks or one of its decisions.

    Raises InvalidRequest, NotFound, PreconditionFailed.
    """
    check_update_texts(update)
    if update.decision_id:
        _check_acceptance(state, update)
    elif update.task_id:
        _check_known(state, (update.task_id,), field="task_id")
        _check_known(state, update.depends_on or (), field="depends_on")
        _check_acyclic(state, update.task_id, update.depends_on or ())
    else:
        notes: Mapping[str, str] = state.story.notes if state.story else {}
        check_notes({name: text for name, text in {**notes, **update.notes}.items() if text})


def check_update_texts(update: StoryUpdated) -> None:
    """Whether an update is valid by itself. Raises InvalidRequest."""
    if update.title is not None:
        check_title(update.title)
    check_length(update.description or "", MAX_TEXT_CHARS, field="description")
    check_items(update.acceptance_criteria or (), field="acceptance_criteria")
    check_notes({name: text for name, text in update.notes.items() if text})
    check_number(update.depends_on or (), field="depends_on")
    if update.task_id and update.decision_id:
        raise InvalidRequest(
            "both a task and a decision are given", field="decision_id", hint="change one of them at a time"
        )
    kind = "decision" if update.decision_id else "task" if update.task_id else "story"
    changed = _fields_set(update)
    for field in changed:
        if kind not in _OF[field]:
            raise InvalidRequest(
                f"{field} cannot be changed of a {kind}", field=field, hint=f"of a {' or a '.join(_OF[field])} only"
            )
    if not changed:
        raise InvalidRequest("nothing to change", field="update", hint="set at least one field")


def _fields_set(update: StoryUpdated) -> list[str]:
    """The fields that an update sets."""
    return [name for name in _OF if getattr(update, name) is not None and getattr(update, name) != {}]


def _check_supersedes(state: StoryState, decision_id: str) -> None:
    if not decision_id:
        return
    old = state.decisions.get(decision_id)
    if old is None:
        raise NotFound(
            f"there is no decision {decision_id[:64]!r} to supersede",
            field="supersedes",
            hint="use a decision of the same story",
        )
    if old.state is DecisionState.SUPERSEDED:
        raise PreconditionFailed(
            f"decision {old.decision_id} is already superseded",
            field="supersedes",
            hint="supersede the decision that replaced it",
        )


def _check_acceptance(state: StoryState, update: StoryUpdated) -> None:
    decision = state.decisions.get(update.decision_id)
    if decision is None:
        where = "the project" if state.story_id == NO_STORY else f"story {state.story_id}"
        raise NotFound(
            f"{where} has no decision {update.decision_id[:64]!r}",
            field="decision_id",
            hint="add it with AddProjectDecision",
        )
    if update.decision_state is decision.state:
        return
    if decision.state is DecisionState.PROPOSED and update.decision_state is DecisionState.ACCEPTED:
        _check_supersedes(state, decision.supersedes)
    else:
        raise PreconditionFailed(
            f"a decision that is {decision.state} cannot become {update.decision_state}",
            field="decision_state",
            hint="accept a proposed decision, or add a new one that supersedes it",
        )


def _check_acyclic(state: StoryState, task_id: str, depends_on: Sequence[str]) -> None:
    """Check that a task with these dependencies does not depend on itself. Raises InvalidRequest."""
    visited = set[str]()
    waiting = list(depends_on)
    while waiting:
        other = waiting.pop()
        if other == task_id:
            raise InvalidRequest(
                f"task {task_id} would depend on itself", field="depends_on", hint="remove the dependency"
            )
        if other not in visited:
            visited.add(other)
            task = state.tasks.get(other)
            waiting.extend(task.depends_on if task else ())


def check_record(record: WorkRecord) -> None:
    """Whether the ids of a record and its cost are valid. Raises InvalidRequest."""
    check_identifier(record.execution_id, field="execution_id")
    for name, text in (
        ("task_id", record.task_id),
        ("story_id", "" if record.story_id == NO_STORY else record.story_id),
        ("case_id", record.case_id),
        ("parent_execution_id", record.parent_execution_id),
    ):
        if text:
            check_identifier(text, field=name)
    check_cost(record.usage)


def check_size(body: ChangeBody) -> None:
    """Whether a change can be stored at all. Raises InvalidRequest."""
    size = len(to_json(body))
    if size > MAX_CHANGE_BYTES:
        raise InvalidRequest(
            f"the change has {size} bytes", field=body.type, hint=f"at most {MAX_CHANGE_BYTES}; shorten the texts"
        )


def _check_known(state: StoryState, task_ids: Sequence[str], *, field: str) -> None:
    for task_id in task_ids:
        if task_id not in state.tasks:
            raise NotFound(
                f"story {state.story_id} has no task {task_id[:64]!r}", field=field, hint="create it with CreateTask"
            )
