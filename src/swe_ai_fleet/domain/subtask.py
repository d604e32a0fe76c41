"""A task split into subtasks: a directed acyclic graph of smaller tasks, and how each of them ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.task import Role


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
    """A plan split into subtasks, dependencies first. `usage` is what the planner spent."""

    derivation_id: str
    subtasks: tuple[Subtask, ...]
    usage: Usage = field(default_factory=Usage)


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
