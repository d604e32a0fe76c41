"""The state of a story: a fold over its changes and nothing else."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from swe_ai_fleet.domain.candidate import TestSummary
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
    WorkRecord,
)
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.text import check_identifier, well_formed, without_login
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.truncation import truncate


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStep:
    """A story's change to a phase. `version` is the story's after it."""

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
    """Whether an update changes nothing of a story, its tasks and its decisions except times."""
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
    """Tasks after those that they depend on, otherwise as listed; a dependency not in the list counts as done.

    Kahn's algorithm, taking the first that can come next. Tasks on a cycle come last, as listed.
    """
    listed = list(tasks)
    places = {task.task_id: place for place, task in enumerate(listed)}
    missing = [{places[other] for other in task.depends_on if other in places} for task in listed]
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
    return tuple(listed[place] for place in (*ordered, *(place for place in range(len(listed)) if place not in taken)))


MAX_TITLE_CHARS = 300
MAX_TEXT_CHARS = 20_000
MAX_ITEMS = 50
MAX_ITEM_CHARS = 2_000
MAX_NAME_CHARS = 128
T = TypeVar("T")


def check_number(items: Sequence[str], *, field: str) -> None:
    """Check the number of entries. Raises InvalidRequest."""
    if len(items) > MAX_ITEMS:
        raise InvalidRequest(f"{len(items)} entries in {field}; too many", field=field, hint=f"at most {MAX_ITEMS}")


def check_title(text: str) -> None:
    """Check a title. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest("the title is empty", field="title")
    if len(text) > MAX_TITLE_CHARS:
        raise InvalidRequest(
            f"the title has {len(text)} characters",
            field="title",
            hint=f"at most {MAX_TITLE_CHARS}; move the rest to the description",
        )


def check_items(items: Sequence[str], *, field: str) -> None:
    """Check the number of texts, and that none is empty or too long. Raises InvalidRequest."""
    check_number(items, field=field)
    for number, item in enumerate(items):
        if not item.strip() or len(item) > MAX_ITEM_CHARS:
            raise InvalidRequest(
                f"{field}[{number}] has {len(item)} characters",
                field=f"{field}[{number}]",
                hint=f"1 to {MAX_ITEM_CHARS}",
            )


def check_notes(notes: Mapping[str, str]) -> None:
    """Check the names and texts of notes. Raises InvalidRequest."""
    for name in notes:
        check_identifier(name, field="notes")
    check_items(tuple(notes.values()), field="notes")


MAX_INSTRUCTION_CHARS = 2_000
MAX_SUMMARY_CHARS = 4_000
MAX_PATHS = 300
MAX_NAMES = 100
_PATH_CHARS = 400
_NAME_CHARS = 200
_LOOKED_AT = 4
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Cleaner:
    """Cleans texts of callers before they are stored.

    Args:
        mask: Hides secrets.
    """

    def __init__(self, mask: SecretMask) -> None:
        self._mask = mask

    def text(self, text: str) -> str:
        """One text."""
        return self._mask(_CONTROL.sub("", well_formed(text.replace("\r\n", "\n"))))

    def story(self, story: Story) -> Story:
        return replace(
            story,
            title=self.text(story.title),
            description=self.text(story.description),
            acceptance_criteria=self._all(story.acceptance_criteria),
            notes=self._notes(story.notes),
        )

    def task(self, task: StoryTask) -> StoryTask:
        return replace(task, title=self.text(task.title), description=self.text(task.description))

    def decision(self, decision: Decision) -> Decision:
        return replace(
            decision,
            title=self.text(decision.title),
            rationale=self.text(decision.rationale),
            alternatives=self._all(decision.alternatives),
            decided_by=self.text(decision.decided_by),
        )

    def update(self, update: StoryUpdated) -> StoryUpdated:
        criteria = update.acceptance_criteria
        return replace(
            update,
            title=None if update.title is None else self.text(update.title),
            description=None if update.description is None else self.text(update.description),
            acceptance_criteria=None if criteria is None else self._all(criteria),
            notes=self._notes(update.notes),
        )

    def record(self, record: WorkRecord) -> WorkRecord:
        """A record with its texts cut, since no caller could be asked to shorten them."""
        return replace(
            record,
            plan_id=self._line(record.plan_id),
            kind=self._line(record.kind),
            role=self._line(record.role),
            repository=self._line(without_login(record.repository), _PATH_CHARS),
            instruction=self._cut(record.instruction, MAX_INSTRUCTION_CHARS),
            status=self._line(record.status),
            summary=self._cut(record.summary, MAX_SUMMARY_CHARS),
            commits=tuple(self._line(commit) for commit in record.commits[:MAX_NAMES]),
            branch=self._line(record.branch, _PATH_CHARS),
            files_changed=tuple(self._line(path, _PATH_CHARS) for path in record.files_changed[:MAX_PATHS]),
            operations={self._line(name): count for name, count in _first(record.operations)},
            tests=None if record.tests is None else self._tests(record.tests),
            checks={self._line(name): self._line(outcome) for name, outcome in _first(record.checks)},
            verdict=self._line(record.verdict),
        )

    def _tests(self, tests: TestSummary) -> TestSummary:
        return replace(tests, failing=tuple(self._line(name, _PATH_CHARS) for name in tests.failing[:MAX_NAMES]))

    def _all(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.text(text) for text in texts)

    def _notes(self, notes: Mapping[str, str]) -> Mapping[str, str]:
        return {name: self.text(text) for name, text in notes.items()}

    def _line(self, text: str, limit: int = _NAME_CHARS) -> str:
        return " ".join(self.text(text[: _LOOKED_AT * limit]).split())[:limit]

    def _cut(self, text: str, limit: int) -> str:
        # The middle of a huge text is dropped before secrets are masked; a secret at the cut is masked as a part.
        return truncate(self.text(truncate(text, _LOOKED_AT * limit)), limit)


def _first(named: Mapping[str, T]) -> list[tuple[str, T]]:
    return list(named.items())[:MAX_NAMES]
