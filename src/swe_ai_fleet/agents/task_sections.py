"""What a task says of itself, in sections, for those who judge others' work on it."""

from __future__ import annotations

from swe_ai_fleet.domain.task import Task

Section = tuple[str, str]
"""A heading and what stands under it."""


def wishes(task: Task) -> tuple[Section, ...]:
    """What is wanted."""
    constraints = task.constraints
    return (
        ("Task", task.description),
        ("Context", task.context),
        ("Requirements", "\n".join(f"- {requirement}" for requirement in constraints.requirements)),
        ("What it is judged by", constraints.rubric),
    )


def rules(task: Task) -> tuple[Section, ...]:
    """What a change is held to."""
    constraints = task.constraints
    return (
        ("Checks that must pass", "\n".join(f"- {check.name}: `{check.command}`" for check in constraints.checks)),
        ("Paths that may be changed", ", ".join(constraints.allowed_paths)),
    )
