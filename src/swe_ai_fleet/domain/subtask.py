"""A task split into subtasks: a directed acyclic graph of smaller tasks, and the outcome of each."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import Role

MAX_SUBTASKS = 32
MAX_SUBTASK_CHARS = 8_000
SKIPPED = "skipped"
JOINT = "--"
"""Not a dot, so that the task id of a subtask can be a part of a subject."""
_SUBTASK_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtask:
    """A part of a task for one role. `dependencies` are the `subtask_id`s in the same derivation that come before it.

    Of the ready subtasks, the one with the higher `priority` goes first.
    """

    subtask_id: str
    description: str
    role: Role = Role.DEV
    dependencies: tuple[str, ...] = ()
    priority: int = 0
    allowed_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """A task split into subtasks, dependencies first. `usage` is the planner's.

    `joint` separates the ids of task and subtask in the subtask's own task id; in early versions a dot.
    """

    derivation_id: str
    subtasks: tuple[Subtask, ...]
    usage: Usage = field(default_factory=Usage)
    joint: str = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskOutcome:
    """How one subtask ended. `status` is that of its execution, or `skipped` where a dependency failed.

    `commit_sha` is the integration branch's commit after merging its winner; empty: nothing was merged.
    """

    subtask_id: str
    execution_id: str = ""
    status: str = ""
    commit_sha: str = ""
    error: str = ""
    usage: Usage = field(default_factory=Usage)

    @property
    def merged(self) -> bool:
        """Whether subtasks that depend on it can start."""
        return bool(self.commit_sha)


def check_graph(subtasks: Sequence[Subtask], roles: Collection[Role] = ()) -> tuple[Subtask, ...]:
    """The subtasks in topological order, if their graph is valid. `roles` are those allowed, empty: all.

    Raises InvalidRequest with everything that is wrong, the first few of each kind.
    """
    problems = graph_problems(subtasks, roles)
    if problems:
        raise InvalidRequest("; ".join(problems), field="subtasks")
    return in_order(subtasks)


def graph_problems(subtasks: Sequence[Subtask], roles: Collection[Role] = ()) -> tuple[str, ...]:
    """The faults of a graph of subtasks, a sentence each; none where it is valid."""
    if not subtasks:
        return ("the list of subtasks is empty",)
    if len(subtasks) > MAX_SUBTASKS:
        return (f"there are {len(subtasks)} subtasks; at most {MAX_SUBTASKS} are accepted",)
    names = [subtask.subtask_id for subtask in subtasks]
    distinct = set(names)
    problems = [f"two subtasks are called {_quoted(name)}" for name in sorted(distinct) if names.count(name) > 1]
    for task in subtasks:
        name = _quoted(task.subtask_id)
        if not _SUBTASK_ID.fullmatch(task.subtask_id):
            problems.append(f"{name} is not a valid subtask id: a-z, 0-9 and -, at most 40 characters")
        if not task.description.strip():
            problems.append(f"{name} has no description")
        if len(task.description) > MAX_SUBTASK_CHARS:
            problems.append(f"the description of {name} has more than {MAX_SUBTASK_CHARS} characters")
        if roles and task.role not in roles:
            problems.append(f"{name} has the role {task.role}; allowed: {', '.join(sorted(roles))}")
        if len(task.dependencies) > MAX_SUBTASKS:
            problems.append(f"{name} has {len(task.dependencies)} dependencies; at most {MAX_SUBTASKS} are accepted")
            continue
        unknown = [other for other in dict.fromkeys(task.dependencies) if other not in distinct]
        problems += [f"{name} depends on {_quoted(other)}, which is not a subtask" for other in unknown]
    if len(distinct) == len(names) and (cycle := _cycle(subtasks)):
        problems.append(f"there is a cycle: {' -> '.join(map(_quoted, cycle))}")
    return tuple(problems)


def in_order(subtasks: Sequence[Subtask]) -> tuple[Subtask, ...]:
    """The subtasks with dependencies first; among those that could come next the higher priority, then as given.

    Subtasks on a cycle, or that depend on one or on an unknown subtask, are left out.
    """
    places = {subtask.subtask_id: (-subtask.priority, number) for number, subtask in enumerate(subtasks)}
    sorter = TopologicalSorter({subtask.subtask_id: subtask.dependencies for subtask in subtasks})
    with suppress(CycleError):
        sorter.prepare()
    heap, ordered = list[tuple[int, int]](), list[Subtask]()
    while True:
        for name in sorter.get_ready():
            if name in places:
                heapq.heappush(heap, places[name])
        if not heap:
            return tuple(ordered)
        ordered.append(subtasks[heapq.heappop(heap)[1]])
        sorter.done(ordered[-1].subtask_id)


def ready(
    subtasks: Sequence[Subtask], outcomes: Mapping[str, SubtaskOutcome], started: Collection[str] = ()
) -> tuple[Subtask, ...]:
    """The subtasks that can start now, the higher priority first: not started, not ended, all dependencies merged."""
    free = [
        subtask
        for subtask in subtasks
        if subtask.subtask_id not in outcomes
        and subtask.subtask_id not in started
        and all(name in outcomes and outcomes[name].merged for name in subtask.dependencies)
    ]
    return tuple(sorted(free, key=lambda subtask: -subtask.priority))


def doomed(
    subtasks: Sequence[Subtask], outcomes: Mapping[str, SubtaskOutcome]
) -> tuple[tuple[Subtask, tuple[str, ...]], ...]:
    """The subtasks that can never start, each with the failed ones that it depends on, directly or through others."""
    failed: dict[str, tuple[str, ...]] = {name: (name,) for name, outcome in outcomes.items() if not outcome.merged}
    doomed_subtasks: list[tuple[Subtask, tuple[str, ...]]] = []
    for subtask in in_order(subtasks):
        causes = dict.fromkeys(cause for name in subtask.dependencies for cause in failed.get(name, ()))
        if causes and subtask.subtask_id not in outcomes:
            failed[subtask.subtask_id] = tuple(causes)
            doomed_subtasks.append((subtask, tuple(causes)))
    return tuple(doomed_subtasks)


def needs_all_others(subtask: Subtask, subtasks: Sequence[Subtask]) -> bool:
    """Whether a subtask comes after all the others, so that its result is that of the whole task."""
    by_id = {subtask.subtask_id: subtask for subtask in subtasks}
    reached: set[str] = set()
    pending = [subtask.subtask_id]
    while pending:
        name = pending.pop()
        if name not in reached and name in by_id:
            reached.add(name)
            pending.extend(by_id[name].dependencies)
    return len(reached) == len(by_id)


def _cycle(subtasks: Sequence[Subtask]) -> tuple[str, ...]:
    """A cycle, with its first id repeated at the end; empty where there is none."""
    try:
        TopologicalSorter({subtask.subtask_id: subtask.dependencies for subtask in subtasks}).prepare()
    except CycleError as fault:
        return tuple(reversed(fault.args[1]))
    return ()


def _quoted(name: str) -> str:
    return repr(name[:_SHOWN])
