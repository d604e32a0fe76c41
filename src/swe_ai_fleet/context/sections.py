"""The parts of the context, and how much each matters to a role in a phase."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from swe_ai_fleet.domain.context import Phase
from swe_ai_fleet.domain.task import Role


class Section(StrEnum):
    """A part of the context that a role and a phase decide about."""

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
    # Builds a task: what it is, what was decided about it, what failed when somebody last tried.
    Role.DEV: (0.8, 0.9, 0.2, 0.9, 0.9, 0.2, 0.7, 0.7, 0.6, 0.5, 0.6),
    # Holds the work against the criteria; what was decided against is noise to it.
    Role.QA: (0.7, 1.0, 0.2, 0.5, 0.5, 0.0, 1.0, 0.9, 0.6, 0.5, 0.5),
    # Decides: what was decided, what was turned down and why, and what the neighbouring stories want.
    Role.ARCHITECT: (0.9, 0.8, 0.8, 0.6, 1.0, 0.9, 0.3, 0.4, 0.5, 0.5, 0.5),
    # Ships and runs it: what was done and with which result; other stories' plans are not its business.
    Role.DEVOPS: (0.7, 0.4, 0.0, 0.7, 0.8, 0.0, 0.5, 0.6, 0.8, 0.6, 0.5),
    # Works on data and schemas: what holds for them, and the files that carry them.
    Role.DATA: (0.7, 0.8, 0.0, 0.7, 0.9, 0.3, 0.6, 0.7, 0.5, 0.6, 0.5),
}
_PHASES: Mapping[Phase, tuple[float, ...]] = {
    # Nothing is built yet: what is wanted, and what surrounds it.
    Phase.PLAN: (1.0, 1.0, 1.0, 0.8, 0.8, 0.6, 0.2, 0.2, 0.4, 1.0, 1.0),
    # Choices are made: what was chosen and what was not.
    Phase.DESIGN: (0.9, 0.9, 0.8, 0.6, 1.0, 1.0, 0.2, 0.4, 0.4, 0.8, 1.0),
    # The task at hand and what binds it.
    Phase.BUILD: (0.8, 0.9, 0.3, 1.0, 0.9, 0.2, 0.8, 0.8, 0.8, 0.8, 1.0),
    # What it is held against, and what changed.
    Phase.TEST: (0.6, 1.0, 0.2, 0.5, 0.5, 0.1, 1.0, 1.0, 0.7, 0.6, 0.8),
    # What changed, against what was wanted and decided.
    Phase.REVIEW: (0.7, 1.0, 0.3, 0.4, 1.0, 0.6, 0.9, 1.0, 0.8, 0.5, 0.6),
    # What came of it.
    Phase.DONE: (0.8, 0.6, 0.5, 0.3, 0.9, 0.3, 0.4, 0.5, 1.0, 0.6, 0.6),
}
_UNNAMED = 0.8
"""Where no role or no phase is named, nothing is put before anything else."""
_NEEDED = 0.6
_PLACES = {section: place for place, section in enumerate(Section)}


def weight(section: Section, role: Role | None, phase: Phase | None) -> float:
    """How much a section matters to a role in a phase, from 0 (it is none of its business) to 1."""
    place = _PLACES[section]
    return (_UNNAMED if role is None else _ROLES[role][place]) * (_UNNAMED if phase is None else _PHASES[phase][place])


def needed(role: Role, phase: Phase) -> tuple[Section, ...]:
    """What a role can't do without in a phase. Memories are asked for by the task, never needed."""
    return tuple(
        section for section in Section if section is not Section.MEMORY and weight(section, role, phase) >= _NEEDED
    )
