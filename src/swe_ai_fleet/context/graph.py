"""What a tenant's projects know of themselves: a fold over the changes of a `ChangeLog` and nothing else.

Changes of one story come in the order of their versions, records of work once for each execution; between stories the
order does not matter. So a replica may take in its own change before it has heard those that others made earlier, and
ends with the same graph.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.context import (
    NO_STORY,
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
    WorkRecorded,
)
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound


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

    `story` is None for what belongs to no story. `version` counts its changes; records of work are none. `places` say
    for each node (`task:<id>`) at which sequence number of the log it was changed last.
    """

    story_id: str
    version: int = 0
    story: Story | None = None
    tasks: Mapping[str, StoryTask] = field(default_factory=dict[str, StoryTask])
    decisions: Mapping[str, Decision] = field(default_factory=dict[str, Decision])
    phases: tuple[PhaseStep, ...] = ()
    places: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A record of work at its place in the log."""

    sequence: int
    record: WorkRecord


class ContextGraph:
    """What is known in one tenant. Equal where the same changes went in. Made by `fold`, moved on by `apply`."""

    def __init__(self) -> None:
        self._stories: dict[str, StoryState] = {}
        self._work: dict[str, Work] = {}
        self._cases: dict[str, set[str]] = {}
        self._holders: dict[str, set[str]] = {}
        self._work_of: dict[str, list[tuple[int, str]]] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextGraph):
            return NotImplemented
        return self._stories == other._stories and self._work == other._work

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it goes on changing

    @property
    def stories(self) -> Mapping[str, StoryState]:
        """All stories by id, what belongs to none (`NO_STORY`) among them where there is such."""
        return self._stories

    def version(self, story_id: str) -> int:
        """How many changes a story has had; 0 where there is none."""
        known = self._stories.get(story_id)
        return known.version if known else 0

    def story(self, story_id: str, *, field: str = "story_id") -> StoryState:
        """A story that was created. Raises NotFound with `field`."""
        known = self._stories.get(story_id)
        if known is None or known.story is None:
            raise NotFound(f"there is no story {story_id[:64]!r}", field=field, hint="create it with CreateStory")
        return known

    def common(self) -> StoryState:
        """What was decided for the whole project, whatever the story."""
        return self._stories.get(NO_STORY) or StoryState(story_id=NO_STORY)

    def task(self, task_id: str, story_id: str = "", *, field: str = "task_id") -> StoryTask:
        """A story's task; the story need not be named where one alone has such a task.

        Raises NotFound, InvalidRequest (several stories have it), both with `field`.
        """
        found = self.tasks(task_id, story_id)
        if len(found) > 1:
            raise InvalidRequest(f"several stories have a task {task_id[:64]!r}", field=field, hint="name the story")
        if not found:
            where = f"story {story_id[:64]!r} has" if story_id else "there is"
            raise NotFound(f"{where} no task {task_id[:64]!r}", field=field, hint="create it with CreateTask")
        return found[0]

    def tasks(self, task_id: str, story_id: str = "") -> tuple[StoryTask, ...]:
        """The tasks of that id, in the order of their stories' ids; none where nobody knows it."""
        stories = [story_id] if story_id else sorted(self._holders.get(f"task:{task_id}", ()))
        found = [self._stories[one].tasks.get(task_id) for one in stories if one in self._stories]
        return tuple(task for task in found if task is not None)

    def decisions(self, decision_id: str, story_id: str = "") -> tuple[Decision, ...]:
        """The decisions of that id, in the order of their stories' ids; none where nobody knows it."""
        stories = [story_id] if story_id else sorted(self._holders.get(f"decision:{decision_id}", ()))
        found = [self._stories[one].decisions.get(decision_id) for one in stories if one in self._stories]
        return tuple(decision for decision in found if decision is not None)

    def case(self, case_id: str) -> tuple[StoryState, ...]:
        """The stories of a case, in the order of their creation; none where nobody knows it."""
        found = [self._stories[story_id] for story_id in self._cases.get(case_id, ())]
        return tuple(sorted(found, key=lambda one: (one.story.created_at if one.story else "", one.story_id)))

    def work(self, node: str, *, limit: int = 0) -> tuple[Work, ...]:
        """What executions did for a story, a task or a case, to a file, with a commit, or as parts of an execution.

        The newest first; `limit` 0: all of it.

        Args:
            node: `story:<id>`, `task:<id>`, `case:<id>`, `file:<path>`, `commit:<id>` or `execution:<id>` (its parts).
            limit: The most that is returned.
        """
        found = self._work_of.get(node, ())
        return tuple(self._work[execution_id] for _, execution_id in reversed(found[-limit:] if limit else found))

    def execution(self, execution_id: str) -> Work | None:
        """What one execution did, None where it is not recorded."""
        return self._work.get(execution_id)

    def apply(self, stored: StoredChange) -> bool:
        """Take in one change; False where it was known already."""
        change = stored.change
        if isinstance(change.body, WorkRecorded):
            return self._record(change.body.record, stored.sequence)
        known = self._stories.get(change.story_id) or StoryState(story_id=change.story_id)
        if change.version <= known.version:
            return False
        changed = advance(known, stored)
        self._stories[change.story_id] = changed
        match change.body:
            case StoryCreated(story=story) if story.case_id:
                self._cases.setdefault(story.case_id, set()).add(story.story_id)
            case TaskCreated(task=task):
                self._holders.setdefault(f"task:{task.task_id}", set()).add(change.story_id)
            case DecisionAdded(decision=decision):
                self._holders.setdefault(f"decision:{decision.decision_id}", set()).add(change.story_id)
            case _:
                pass
        return True

    def _record(self, record: WorkRecord, sequence: int) -> bool:
        if record.execution_id in self._work:
            return False
        self._work[record.execution_id] = Work(sequence=sequence, record=record)
        for node in dict.fromkeys(_worked_on(record)):
            insort(self._work_of.setdefault(node, []), (sequence, record.execution_id))
        return True


def advance(state: StoryState, stored: StoredChange) -> StoryState:
    """A story after one more of its changes. What a change speaks of and is not there, it leaves out."""
    change = stored.change
    state = replace(state, version=change.version)
    match change.body:
        case StoryCreated(story=story):
            step = PhaseStep(phase=story.phase, at=change.at, version=change.version)
            state = replace(state, story=story, phases=(*state.phases, step))
        case TaskCreated(task=task):
            state = replace(state, tasks={**state.tasks, task.task_id: task})
            return _placed(state, f"task:{task.task_id}", stored.sequence)
        case DecisionAdded(decision=decision):
            decisions = {**state.decisions, decision.decision_id: decision}
            old = decisions.get(decision.supersedes)
            if old is not None:
                decisions[old.decision_id] = replace(old, state=DecisionState.SUPERSEDED)
            return _placed(replace(state, decisions=decisions), f"decision:{decision.decision_id}", stored.sequence)
        case PhaseChanged(phase=phase) if state.story is not None:
            step = PhaseStep(
                phase=phase, at=change.at, version=change.version, reason=change.body.reason, by=change.body.by
            )
            story = replace(state.story, phase=phase, updated_at=change.at)
            state = replace(state, story=story, phases=(*state.phases, step))
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


def fold(changes: Iterable[StoredChange]) -> Mapping[str, ContextGraph]:
    """The graphs of all tenants that these changes, oldest first, lead to."""
    graphs: dict[str, ContextGraph] = {}
    for stored in changes:
        graphs.setdefault(stored.change.tenant, ContextGraph()).apply(stored)
    return graphs


def in_order(tasks: Iterable[StoryTask]) -> tuple[StoryTask, ...]:
    """Tasks with those that they depend on first, otherwise as given; what is not among them counts as done.

    Kahn's algorithm, taking the first that can come next. What lies on a cycle comes last, as given.
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
    return tuple(given[place] for place in (*ordered, *(one for one in range(len(given)) if one not in taken)))


def _placed(state: StoryState, node: str, sequence: int) -> StoryState:
    return replace(state, places={**state.places, node: sequence})


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
        state=task.state if update.state is None else update.state,
        updated_at=at,
    )


def _worked_on(record: WorkRecord) -> Iterator[str]:
    """The nodes under which a record is found."""
    if record.story_id != NO_STORY:
        yield f"story:{record.story_id}"
    if record.task_id:
        yield f"task:{record.task_id}"
    if record.case_id:
        yield f"case:{record.case_id}"
    if record.parent_execution_id:
        yield f"execution:{record.parent_execution_id}"
    for path in record.files_changed:
        yield f"file:{path}"
    for commit in record.commits:
        yield f"commit:{commit}"
