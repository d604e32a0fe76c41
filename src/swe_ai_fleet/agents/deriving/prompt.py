"""What a planner is told: the task, and what the repository says of itself fenced off."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swe_ai_fleet.agents.repository_facts import RepositoryFacts
from swe_ai_fleet.agents.sub_agents.prompts import opening
from swe_ai_fleet.agents.untrusted import Fence
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.subtask import MAX_SUBTASKS
from swe_ai_fleet.domain.task import Role, Task
from swe_ai_fleet.ports import SecretMask

MAX_CONTEXT_CHARS = 24_000
MAX_FACTS_CHARS = 16_000
_ORDERS = {
    "sequential": "Each subtask is carried out after the one before it, on top of its result.",
    "parallel": "All subtasks are carried out at the same time: none may depend on another.",
    "auto": "Subtasks that do not depend on each other are carried out at the same time.",
}
STRATEGIES = tuple(_ORDERS)


def derive_messages(
    task: Task, *, roles: Collection[Role], strategy: str, facts: RepositoryFacts | None, mask: SecretMask
) -> tuple[Message, ...]:
    """The first messages of a planner's run. Without `facts` it has no repository to think of."""
    fence = Fence(mask, task.execution_id, "derive")
    constraints = task.constraints
    sections = [
        ("Task", mask(task.description)),
        ("Context", fence(task.context, MAX_CONTEXT_CHARS)),
        ("Requirements", mask("\n".join(f"- {requirement}" for requirement in constraints.requirements))),
        ("What it is judged by", mask(constraints.rubric)),
        ("Checks that must pass in the end", mask("\n".join(f"- `{check.command}`" for check in constraints.checks))),
        ("Paths that may be changed", mask(", ".join(constraints.allowed_paths))),
        ("The repository", fence(_facts(facts), MAX_FACTS_CHARS) if facts is not None else ""),
    ]
    return opening(
        "derive",
        sections,
        roles=", ".join(sorted(roles or Role)),
        order=_ORDERS[strategy],
        most=MAX_SUBTASKS,
        agents=task.num_agents,
        warning=fence.warning,
    )


def _facts(facts: RepositoryFacts) -> str:
    parts: Sequence[str] = (
        f"Languages: {', '.join(facts.languages)}" if facts.languages else "",
        f"Where the code is:\n{facts.map}" if facts.map else "",
        *(f"{one.path}:\n{one.text}" for one in facts.instructions),
    )
    return "\n\n".join(part for part in parts if part)
