"""Subtasks as tasks of their own: what each is told, what it may spend, and what it is held to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace

from swe_ai_fleet.domain.budget import Totals, Usage
from swe_ai_fleet.domain.subtask import Derivation, Subtask, needs_all_others
from swe_ai_fleet.domain.task import MAX_PRIORITY, Delivery, Task, TaskKind
from swe_ai_fleet.tools.policy import path_allowed
from swe_ai_fleet.tools.truncation import beginning

PLANNER_SHARE = 4
"""A planner may spend no more than one part in so many of a task's totals."""
_MAX_ID_CHARS = 128
_WILDCARD = re.compile(r"[*?\[]")
_MAX_CONTEXT_CHARS = 200_000
_MAX_WHOLE_CHARS = 8_000
_MAX_OTHER_CHARS = 300


def planner_task(task: Task) -> Task:
    """The task with what its planner may spend."""
    limits = task.constraints.totals.share(task.constraints.limits, parts=PLANNER_SHARE)
    return replace(task, constraints=replace(task.constraints, limits=limits))


def child_task(parent: Task, subtask: Subtask, derivation: Derivation) -> Task:
    """The task of a subtask; the same parent and derivation always make the same one.

    Its totals are an even part of what the planner left of the parent's, one part being kept for merging. The parent's
    own checks and rubric are about the whole: a subtask is held to them only if it comes after all the others,
    otherwise to the repository's own tests.
    """
    constraints, parts = parent.constraints, len(derivation.subtasks) + 1
    whole = needs_all_others(subtask, derivation.subtasks)
    return replace(
        parent,
        task_id=child_task_id(parent.task_id, subtask.subtask_id),
        kind=TaskKind.DELIBERATE,
        description=subtask.description,
        role=subtask.role,
        context=_context(parent, subtask, derivation, whole=whole),
        constraints=replace(
            constraints,
            rubric=constraints.rubric if whole else "",
            checks=constraints.checks if whole else (),
            require_verified=constraints.require_verified and whole,
            totals=part(constraints.totals, derivation.usage, parts, least=parent.num_agents),
            allowed_paths=_paths(subtask.allowed_paths, constraints.allowed_paths),
        ),
        delivery=Delivery(),
        # What is begun goes before what waits.
        priority=min(MAX_PRIORITY, parent.priority + 1),
        derive_subtasks=False,
        # What the whole came to is remembered once, at its end.
        memory=replace(parent.memory, write=False, namespaces=parent.memory.namespaces if parent.memory.read else ()),
        parent_execution_id=parent.execution_id,
    )


def child_task_id(task_id: str, subtask_id: str) -> str:
    """`<task_id>.<subtask_id>`; a task id that leaves no room is cut, and told apart by a digest."""
    if subtask_id == "lock":
        subtask_id = "lock_"  # no id may end in `.lock`
    room = _MAX_ID_CHARS - len(subtask_id) - 1
    if len(task_id) > room:
        digest = hashlib.sha256(task_id.encode()).hexdigest()[:12]
        task_id = f"{task_id[: room - len(digest) - 1]}-{digest}"
    return f"{task_id}.{subtask_id}"


def part(totals: Totals, spent: Usage, parts: int, *, least: int) -> Totals:
    """One of `parts` equal parts of what is left of totals; `least` tokens and calls where too little is."""
    return Totals(
        max_tokens=max(least, (totals.max_tokens - spent.total_tokens) // parts) if totals.max_tokens else 0,
        max_tool_calls=max(least, totals.max_tool_calls // parts) if totals.max_tool_calls else 0,
        max_cost=max(1e-9, (totals.max_cost - spent.cost) / parts) if totals.max_cost else 0.0,
    )


def _context(parent: Task, subtask: Subtask, derivation: Derivation, *, whole: bool) -> str:
    """The parent's context, and where the subtask stands in the whole."""
    after, before = _reach(derivation, up=False), _reach(derivation, up=True)
    name = subtask.subtask_id
    others: list[str] = []
    for one in derivation.subtasks:
        if one.subtask_id == name:
            continue
        when = "somebody else does it at the same time"
        if one.subtask_id in before[name]:
            when = "done, you stand on its result"
        elif one.subtask_id in after[name]:
            when = "comes after yours"
        others.append(f"- {one.subtask_id} ({when}): {_line(one.description)}")
    parts = [
        beginning(parent.context, _MAX_CONTEXT_CHARS),
        f"Your task is a part of this one:\n{beginning(parent.description, _MAX_WHOLE_CHARS)}",
        f"The other parts, which are not yours to do:\n{chr(10).join(others)}" if others else "",
    ]
    if not whole and parent.constraints.checks:
        checks = "\n".join(f"- {check.command[:_MAX_OTHER_CHARS]}" for check in parent.constraints.checks)
        parts.append(f"When all parts are done, these must pass:\n{checks}")
    return "\n\n".join(part for part in parts if part.strip())


def _reach(derivation: Derivation, *, up: bool) -> Mapping[str, set[str]]:
    """For each subtask, all that it depends on (`up`), or all that depend on it."""
    reach: dict[str, set[str]] = {one.subtask_id: set() for one in derivation.subtasks}
    # Dependencies come first in a derivation.
    for one in derivation.subtasks:
        for name in one.dependencies:
            reach[one.subtask_id] |= {name} | reach[name]
    if up:
        return reach
    return {name: {other for other, behind in reach.items() if name in behind} for name in reach}


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_OTHER_CHARS else f"{line[: _MAX_OTHER_CHARS - 1]}…"


def _paths(wanted: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The paths a planner names, as far as the task allows them; the task's own where none are left."""
    if not allowed:
        return wanted
    return tuple(path for path in wanted if _within(path, allowed)) or allowed


def _within(path: str, allowed: tuple[str, ...]) -> bool:
    """Whether whatever a glob matches is allowed for certain."""
    if path in allowed:
        return True
    if not _WILDCARD.search(path):
        return path_allowed(path, allowed)
    roots = (glob.rstrip("/*") for glob in allowed)
    return any(not root or (not _WILDCARD.search(root) and path.startswith(f"{root}/")) for root in roots)
