"""Drafts of a story's context: its parts as texts, before the selection.

Each part belongs to a section, which has a weight for a role in a phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from swe_ai_fleet.domain.context import NO_STORY, Decision, DecisionState, Phase, StoryTask, TaskState, WorkRecord
from swe_ai_fleet.domain.memory import Recollection
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import one_line
from swe_ai_fleet.extensions.knowledge.graph import ContextGraph, LoggedWork, file_node, repository_name
from swe_ai_fleet.extensions.knowledge.story import StoryState, in_order


class Section(StrEnum):
    """A kind of context, which is weighted by role and phase."""

    STORY = "story"
    CRITERIA = "criteria"
    CASE = "case"
    TASKS = "tasks"
    DECISIONS = "decisions"
    ALTERNATIVES = "alternatives"
    TESTS = "tests"
    FILES = "files"
    HISTORY = "history"
    NOTES = "notes"
    MEMORY = "memory"


_ROLES: Mapping[Role, tuple[float, ...]] = {
    # story, criteria, case, tasks, decisions, alternatives, tests, files, history, notes, memory
    # Builds a task: its description, the decisions about it, the last failures.
    Role.DEV: (0.8, 0.9, 0.2, 0.9, 0.9, 0.2, 0.7, 0.7, 0.6, 0.5, 0.6),
    # Checks the work against the criteria; rejected alternatives are noise.
    Role.QA: (0.7, 1.0, 0.2, 0.5, 0.5, 0.0, 1.0, 0.9, 0.6, 0.5, 0.5),
    # Decides: earlier decisions, rejected alternatives and the reasons, and the neighbouring stories.
    Role.ARCHITECT: (0.9, 0.8, 0.8, 0.6, 1.0, 0.9, 0.3, 0.4, 0.5, 0.5, 0.5),
    # Ships and runs it: earlier work and its results; not the plans of other stories.
    Role.DEVOPS: (0.7, 0.4, 0.0, 0.7, 0.8, 0.0, 0.5, 0.6, 0.8, 0.6, 0.5),
    # Works on data and schemas: the decisions about them, and their files.
    Role.DATA: (0.7, 0.8, 0.0, 0.7, 0.9, 0.3, 0.6, 0.7, 0.5, 0.6, 0.5),
}
_PHASES: Mapping[Phase, tuple[float, ...]] = {
    # Nothing is built yet: the story and its surroundings.
    Phase.PLAN: (1.0, 1.0, 1.0, 0.8, 0.8, 0.6, 0.2, 0.2, 0.4, 1.0, 1.0),
    # Choices are made: decisions and alternatives.
    Phase.DESIGN: (0.9, 0.9, 0.8, 0.6, 1.0, 1.0, 0.2, 0.4, 0.4, 0.8, 1.0),
    # The current task, and the decisions about it.
    Phase.BUILD: (0.8, 0.9, 0.3, 1.0, 0.9, 0.2, 0.8, 0.8, 0.8, 0.8, 1.0),
    # The criteria, and the changes.
    Phase.TEST: (0.6, 1.0, 0.2, 0.5, 0.5, 0.1, 1.0, 1.0, 0.7, 0.6, 0.8),
    # The changes, compared with criteria and decisions.
    Phase.REVIEW: (0.7, 1.0, 0.3, 0.4, 1.0, 0.6, 0.9, 1.0, 0.8, 0.5, 0.6),
    # The results.
    Phase.DONE: (0.8, 0.6, 0.5, 0.3, 0.9, 0.3, 0.4, 0.5, 1.0, 0.6, 0.6),
}
_UNNAMED = 0.8
"""Without a role or a phase, all sections weigh the same."""
_NEEDED = 0.6
_PLACES = {section: place for place, section in enumerate(Section)}


def weight(section: Section, role: Role | None, phase: Phase | None) -> float:
    """The weight of a section for a role in a phase, from 0 (irrelevant) to 1."""
    place = _PLACES[section]
    return (_UNNAMED if role is None else _ROLES[role][place]) * (_UNNAMED if phase is None else _PHASES[phase][place])


def needed(role: Role, phase: Phase) -> tuple[Section, ...]:
    """The sections that a role needs in a phase. Memories are recalled for the task, never needed."""
    return tuple(
        section for section in Section if section is not Section.MEMORY and weight(section, role, phase) >= _NEEDED
    )


MAX_TASKS = 100
MAX_DECISIONS = 100
MAX_EXECUTIONS = 10
_FILES_OF = 20
_MAX_FILES = 60
MAX_SIBLINGS = 50
_TITLE_CHARS = 160
_OPERATIONS = 12
OPEN = (TaskState.OPEN, TaskState.IN_PROGRESS)
_KINDS = {
    Section.STORY: "story",
    Section.CRITERIA: "story",
    Section.CASE: "story",
    Section.TASKS: "task",
    Section.DECISIONS: "decision",
    Section.ALTERNATIVES: "decision",
    Section.TESTS: "history",
    Section.FILES: "history",
    Section.HISTORY: "history",
    Section.NOTES: "note",
    Section.MEMORY: "memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextDraft:
    """A part of a context. `nearness` (0 to 1) says how close it is to the purpose of the context.

    `place` is its sequence number in the log, 0 for a part that is not from the log.
    """

    section: Section
    title: str
    text: str
    nearness: float = 1.0
    place: int = 0

    @property
    def kind(self) -> str:
        """The kind of its block."""
        return _KINDS[self.section]


def drafts(
    graph: ContextGraph, state: StoryState, *, task_id: str = "", role: Role | None = None
) -> tuple[ContextDraft, ...]:
    """All parts of a story, for one of its tasks and a role. Decisions for other roles only are left out."""
    return (*_of_story(graph, state), *_of_tasks(state, task_id, role), *_of_decisions(graph, state, task_id, role),
            *_of_work(graph, state, task_id))  # fmt: skip


def of_memory(recalled: Recollection, *, wanted: bool = False) -> ContextDraft:
    """A memory as a part of the context; if it is `wanted` by name, its nearness is 1."""
    memory = recalled.memory
    origin = f", from {memory.source}" if memory.source else ""
    return ContextDraft(
        section=Section.MEMORY,
        title=titled(f"remembered ({memory.kind}{origin})"),
        text=memory.text,
        nearness=1.0 if wanted else min(1.0, max(0.0, recalled.score)),
    )


def titled(text: str) -> str:
    """A text as a title."""
    return one_line(text, _TITLE_CHARS)


def in_force(graph: ContextGraph, state: StoryState, role: Role | None) -> tuple[Decision, ...]:
    """The decisions in force for a story and a role: the project's own first, then the story's, each newest first."""
    decisions = _newest_first(graph.common())
    if state.story_id != NO_STORY:
        decisions += _newest_first(state)
    return tuple(
        decision
        for decision in decisions
        if decision.state is not DecisionState.SUPERSEDED
        and (role is None or not decision.roles or role in decision.roles)
    )


def _of_story(graph: ContextGraph, state: StoryState) -> Iterator[ContextDraft]:
    story = state.story
    if story is None:
        return
    place = state.places.get(f"story:{story.story_id}", 0)
    last = state.phases[-1] if state.phases else None
    lines = [f"phase: {story.phase}"]
    if last is not None and last.reason:
        lines.append(f"reason for the phase: {last.reason}")
    if story.description.strip():
        lines += ["", story.description.strip()]
    yield ContextDraft(
        section=Section.STORY,
        title=f"story {story.story_id}: {titled(story.title)}",
        text="\n".join(lines),
        place=place,
    )
    if story.acceptance_criteria:
        yield ContextDraft(
            section=Section.CRITERIA,
            title=f"acceptance criteria of {story.story_id}",
            text=_listed(story.acceptance_criteria),
            place=place,
        )
    for name, text in story.notes.items():
        yield ContextDraft(section=Section.NOTES, title=f"note {name} of {story.story_id}", text=text, place=place)
    stories = graph.case(story.case_id, limit=MAX_SIBLINGS + 1)
    siblings = [sibling.story for sibling in stories if sibling.story_id != story.story_id and sibling.story]
    if siblings:
        yield ContextDraft(
            section=Section.CASE,
            title=f"other stories of case {story.case_id}",
            text=_listed(f"{near.story_id} ({near.phase}): {titled(near.title)}" for near in siblings[-MAX_SIBLINGS:]),
            place=place,
        )


def _of_tasks(state: StoryState, task_id: str, role: Role | None) -> Iterator[ContextDraft]:
    own = state.tasks.get(task_id)
    near = frozenset(own.depends_on) if own else frozenset[str]()
    shown = [task for task in in_order(state.tasks.values()) if task.state in OPEN or task.task_id in (task_id, *near)]
    for task in sorted(shown, key=lambda task: task.task_id != task_id)[:MAX_TASKS]:
        if task.task_id == task_id:
            nearness = 1.0
        elif task.task_id in near:
            nearness = 0.8
        else:
            nearness = 0.6 if role in (None, task.role) or task.role is None else 0.4
        of = f", {task.role}" if task.role else ""
        yield ContextDraft(
            section=Section.TASKS,
            title=f"task {task.task_id} ({task.state}{of}): {titled(task.title)}",
            text="\n".join((*_needs(state, task), task.description.strip())).strip(),
            nearness=nearness,
            place=state.places.get(f"task:{task.task_id}", 0),
        )


def _needs(state: StoryState, task: StoryTask) -> Iterator[str]:
    if task.depends_on:
        others = (state.tasks[other] for other in task.depends_on if other in state.tasks)
        yield f"depends on: {', '.join(f'{other.task_id} ({other.state})' for other in others)}"


def _of_decisions(graph: ContextGraph, state: StoryState, task_id: str, role: Role | None) -> Iterator[ContextDraft]:
    common = graph.common().places
    for decision in in_force(graph, state, role)[:MAX_DECISIONS]:
        name = f"decision:{decision.decision_id}"
        place = (common if decision.story_id == NO_STORY else state.places).get(name, 0)
        nearness = _nearness(decision, task_id)
        of = "the project" if decision.story_id == NO_STORY else decision.story_id
        lines = [decision.rationale.strip(), f"decided by: {decision.decided_by}" if decision.decided_by else ""]
        yield ContextDraft(
            section=Section.DECISIONS,
            title=f"decision {decision.decision_id} of {of} ({decision.state}): {titled(decision.title)}",
            text="\n".join(line for line in lines if line),
            nearness=nearness,
            place=place,
        )
        if decision.alternatives:
            yield ContextDraft(
                section=Section.ALTERNATIVES,
                title=f"turned down for decision {decision.decision_id}",
                text=_listed(decision.alternatives),
                nearness=nearness,
                place=place,
            )
    old = [decision for decision in _newest_first(state) if decision.state is DecisionState.SUPERSEDED]
    for decision in old[:MAX_SIBLINGS]:
        if role is None or not decision.roles or role in decision.roles:
            yield ContextDraft(
                section=Section.ALTERNATIVES,
                title=f"decision {decision.decision_id} (superseded): {titled(decision.title)}",
                text=decision.rationale.strip(),
                nearness=0.7,
                place=state.places.get(f"decision:{decision.decision_id}", 0),
            )


def _nearness(decision: Decision, task_id: str) -> float:
    """How close a decision is to a task; `task_id` empty: no particular task."""
    if not task_id or not decision.task_ids:
        return 0.9
    return 1.0 if task_id in decision.task_ids else 0.6


def _newest_first(state: StoryState) -> list[Decision]:
    return list(state.decisions.values())[::-1]


def _of_work(graph: ContextGraph, state: StoryState, task_id: str) -> Iterator[ContextDraft]:
    own = graph.work(f"task:{task_id}", limit=_FILES_OF) if task_id else ()
    others = graph.work(f"story:{state.story_id}", limit=_FILES_OF)
    by_id = {work.record.execution_id: work for work in (*own, *others)}
    works = sorted(by_id.values(), key=lambda work: -work.sequence)
    tested = next((work for work in works if work.record.tests is not None), None)
    if tested is not None and tested.record.tests is not None:
        tests = tested.record.tests
        counts = f"{tests.passed} passed, {tests.failed} failed, {tests.errors} with errors, {tests.skipped} skipped"
        yield ContextDraft(
            section=Section.TESTS,
            title=f"tests at the end of {_name(tested)}",
            text="\n".join((counts, _listed(f"failing: {name}" for name in tests.failing))).strip(),
            nearness=1.0 if tests.failing else 0.6,
            place=tested.sequence,
        )
    changed: dict[str, list[str]] = {}
    several = len({repository_name(work.record.repository) for work in works[:_FILES_OF]}) > 1
    for work in works[:_FILES_OF]:
        for path in work.record.files_changed:
            name = file_node(work.record.repository, path).partition(":")[2] if several else path
            changed.setdefault(name, []).append(work.record.execution_id[:8])
    if changed:
        yield ContextDraft(
            section=Section.FILES,
            title="files that executions changed, the last change first",
            text=_listed(f"{path} (by {', '.join(by[:3])})" for path, by in list(changed.items())[:_MAX_FILES]),
            place=works[0].sequence,
        )
    for work in works[:MAX_EXECUTIONS]:
        record = work.record
        yield ContextDraft(
            section=Section.HISTORY,
            title=f"{_name(work)} ({_ended(record)}, {record.ended_at[:10]}): {titled(record.instruction)}",
            text="\n".join(_work_lines(work)),
            nearness=1.0 if task_id and record.task_id == task_id else 0.7,
            place=work.sequence,
        )


def _ended(record: WorkRecord) -> str:
    """The status, with the verdict if there is one: an unverified success must be told from a verified one."""
    return ", ".join(part for part in (record.status, record.verdict) if part)


def _work_lines(work: LoggedWork) -> Iterator[str]:
    record = work.record
    if record.summary.strip():
        yield record.summary.strip()
    if record.commits:
        branch = f" on {record.branch}" if record.branch else ""
        yield f"commits: {', '.join(commit[:12] for commit in record.commits)}{branch}"
    failed = [name for name, outcome in record.checks.items() if outcome == "failed"]
    if failed:
        yield f"checks that failed: {', '.join(failed)}"
    if record.operations:
        most = sorted(record.operations.items(), key=lambda item: (-item[1], item[0]))[:_OPERATIONS]
        yield f"tool calls: {', '.join(f'{name} {count}' for name, count in most)}"


def _name(work: LoggedWork) -> str:
    return f"execution {work.record.execution_id[:8]}"


def _listed(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)
