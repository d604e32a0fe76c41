"""What an agent that answers is told."""

from __future__ import annotations

from swe_ai_fleet.agents.sub_agents.prompts import opening
from swe_ai_fleet.agents.untrusted import Fence
from swe_ai_fleet.domain.errand import AnswerAssignment
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.ports import SecretMask

MAX_BACKGROUND_CHARS = 12_000


def answer_messages(
    assignment: AnswerAssignment, *, mount: str, iterations: int, mask: SecretMask
) -> tuple[Message, ...]:
    """The first messages of an answering run.

    Args:
        assignment: Who is asked what.
        mount: Where the agent's tools see the repository.
        iterations: How many turns it has.
        mask: Hides secrets.
    """
    config, task = assignment.config, assignment.task
    fence = Fence(mask, assignment.execution_id, assignment.agent_id)
    background = fence(assignment.background, MAX_BACKGROUND_CHARS)
    sections = [
        ("What is remembered, and may be wrong", background),
        ("Context", mask(task.context)),
        ("Question", mask(assignment.query)),
    ]
    return opening(
        "answer",
        sections,
        role=str(task.role),
        system_prompt=mask(config.system_prompt.strip()),
        tools=config.use_tools,
        mount=mount,
        iterations=iterations,
        warning=fence.warning if background else "",
    )
