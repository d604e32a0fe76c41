"""A task split into subtasks: a directed acyclic graph of smaller tasks, and how each of them ended."""

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
"""No dot, so that the id of a subtask's own task stands in subjects as it is."""
_SUBTASK_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtask:
    """A part of a task for one role. `dependencies` are the `subtask_id`s of the same derivation that come before.

    Of those that are ready, the one with the higher `priority` goes first.
    """

    subtask_id: str
    description: str
    role: Role = Role.DEV
    dependencies: tuple[str, ...] = ()
    priority: int = 0
    allowed_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """A plan split into subtasks, dependencies first. `usage` is what the planner spent.

    `joint` stands between the ids of task and subtask in the subtask's own task id; in earlier versions a dot.
    """

    derivation_id: str
    subtasks: tuple[Subtask, ...]
    usage: Usage = field(default_factory=Usage)
    joint: str = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskOutcome:
    """How one subtask ended. `status` is that of its execution, or `skipped` where what it needs had failed.

    `commit_sha` is the integration branch's commit that has its winner merged in; empty: nothing of it was merged.
    """

    subtask_id: str
    execution_id: str = ""
    status: str = ""
    commit_sha: str = ""
    error: str = ""
    usage: Usage = field(default_factory=Usage)

    @property
    def merged(self) -> bool:
        """Whether what depends on it can begin."""
        return bool(self.commit_sha)


def check_graph(subtasks: Sequence[Subtask], roles: Collection[Role] = ()) -> tuple[Subtask, ...]:
    """The subtasks in topological order, if they can be carried out. `roles` are those allowed, empty: all.

    Raises InvalidRequest with everything that is wrong, the first few of each kind.
    """
    problems = graph_problems(subtasks, roles)
    if problems:
        raise InvalidRequest("; ".join(problems), field="subtasks")
    return in_order(subtasks)


def graph_problems(subtasks: Sequence[Subtask], roles: Collection[Role] = ()) -> tuple[str, ...]:
    """What keeps subtasks from being carried out, a sentence each; nothing where they are sound."""
    if not subtasks:
        return ("the list of subtasks is empty",)
    if len(subtasks) > MAX_SUBTASKS:
        return (f"there are {len(subtasks)} subtasks; at most {MAX_SUBTASKS} are accepted",)
    names = [subtask.subtask_id for subtask in subtasks]
    known_names = set(names)
    problems = [f"two subtasks are called {_quoted(name)}" for name in sorted(known_names) if names.count(name) > 1]
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
        strangers = [other for other in dict.fromkeys(task.dependencies) if other not in known_names]
        problems += [f"{name} depends on {_quoted(other)}, which is not a subtask" for other in strangers]
    if len(known_names) == len(names) and (cycle := _cycle(subtasks)):
        problems.append(f"there is a cycle: {' -> '.join(map(_quoted, cycle))}")
    return tuple(problems)


def in_order(subtasks: Sequence[Subtask]) -> tuple[Subtask, ...]:
    """The subtasks with dependencies first; among those that could come next the higher priority, then as given.

    What lies on a cycle, or depends on what does or is not there, is left out.
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
    subtasks: Sequence[Subtask], outcomes: Mapping[str, SubtaskOutcome], begun: Collection[str] = ()
) -> tuple[Subtask, ...]:
    """Those that can begin now, the higher priority first: neither begun nor ended, all they depend on merged."""
    free = [
        subtask
        for subtask in subtasks
        if subtask.subtask_id not in outcomes
        and subtask.subtask_id not in begun
        and all(name in outcomes and outcomes[name].merged for name in subtask.dependencies)
    ]
    return tuple(sorted(free, key=lambda subtask: -subtask.priority))


def doomed(
    subtasks: Sequence[Subtask], outcomes: Mapping[str, SubtaskOutcome]
) -> tuple[tuple[Subtask, tuple[str, ...]], ...]:
    """Those not ended that never can begin, each with the failed ones it depends on, directly or through others."""
    failed: dict[str, tuple[str, ...]] = {name: (name,) for name, outcome in outcomes.items() if not outcome.merged}
    doomed_subtasks: list[tuple[Subtask, tuple[str, ...]]] = []
    for subtask in in_order(subtasks):
        causes = dict.fromkeys(cause for name in subtask.dependencies for cause in failed.get(name, ()))
        if causes and subtask.subtask_id not in outcomes:
            failed[subtask.subtask_id] = tuple(causes)
            doomed_subtasks.append((subtask, tuple(causes)))
    return tuple(doomed_subtasks)


def needs_all_others(subtask: Subtask, subtasks: Sequence[Subtask]) -> bool:
    """Whether a subtask comes after all the others, so that its result is the whole."""
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
    """A cycle, its first id again at its end; empty where there is none."""
    try:
        TopologicalSorter({subtask.subtask_id: subtask.dependencies for subtask in subtasks}).prepare()
    except CycleError as fault:
        return tuple(reversed(fault.args[1]))
    return ()


def _quoted(name: str) -> str:
    return repr(name[:_SHOWN])
