"""Who sits in a council: the agents of one task and what makes each look at it differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swe_ai_fleet.domain.candidate import Assignment, Perspective
from swe_ai_fleet.domain.task import PinnedRepository, Role, Task

_VIEWS = (
    "Prefer the smallest change that is complete.",
    "Think of the edge cases first: empty, huge, malformed and concurrent input. Cover them.",
    "Prefer the clearest structure, even where it takes a few lines more; reuse what the repository already has.",
    "Start from the tests: write down what must hold, then make it hold.",
    "Distrust the obvious cause. Find out why the code is as it is before you change it.",
)
_TEMPERATURES = (0.0, 0.4, 0.7, 0.9)


def agent_name(role: Role, number: int) -> str:
    """The name of a council's `number`-th agent, from 1: `agent-dev-1`."""
    return f"agent-{role.lower()}-{number}"


def perspective(number: int, profiles: Sequence[str] = ("",)) -> Perspective:
    """What the `number`-th agent (from 1) gets: the first samples greedily, the others with growing variety.

    `profiles` are taken in turn.
    """
    return Perspective(
        temperature=_TEMPERATURES[(number - 1) % len(_TEMPERATURES)],
        seed=number,
        instructions=_VIEWS[(number - 1) % len(_VIEWS)],
        model_profile=profiles[(number - 1) % len(profiles)],
    )


def assignments(task: Task, repository: PinnedRepository) -> tuple[Assignment, ...]:
    """One assignment for each agent of the task's council; each gets its share of what they may spend together."""
    profiles = task.profiles or ("",)
    limits = task.constraints.totals.share(task.constraints.limits, parts=task.num_agents)
    task = replace(task, constraints=replace(task.constraints, limits=limits))
    return tuple(
        Assignment(
            execution_id=task.execution_id,
            agent_id=agent_name(task.role, number),
            task=task,
            repository=repository,
            perspective=perspective(number, profiles),
        )
        for number in range(1, task.num_agents + 1)
    )
