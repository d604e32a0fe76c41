"""What a model makes of messages that are given up."""

from __future__ import annotations

from collections.abc import Sequence

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history.history import Summarise
from swe_ai_fleet.agents.templates import rendered
from swe_ai_fleet.domain.errors import ModelError
from swe_ai_fleet.domain.message import AssistantMessage, Message, ModelRequest, Sampling, SystemMessage, UserMessage
from swe_ai_fleet.ports import ChatModel

SUMMARY_TOKENS = 1_500
"""Of the longest summary."""
_ARGUMENT_CHARS = 500


def summariser(model: ChatModel, budget: Budget) -> Summarise:
    """A function that has a model summarise messages; it raises ModelError where no summary is to be had.

    Args:
        model: Who summarises.
        budget: What pays for it.
    """

    async def summarise(messages: Sequence[Message]) -> str:
        left = budget.tokens_left
        if left is not None and left < SUMMARY_TOKENS:
            raise ModelError("the tokens that are left do not pay for a summary")
        prompt = rendered("summary", lines=[_line(message) for message in messages])
        reply = await model.reply(
            ModelRequest(_asked(prompt), (), Sampling(temperature=0.0, max_tokens=SUMMARY_TOKENS))
        )
        budget.settle(reply.usage)
        return reply.message.content

    return summarise


def _asked(prompt: str) -> tuple[Message, ...]:
    system = "You keep the notes of an agent that works on a task. Facts only; no advice, no pleasantries."
    return SystemMessage(content=system), UserMessage(content=prompt)


def _line(message: Message) -> str:
    said = f"{message.role}: {message.content}"
    if not isinstance(message, AssistantMessage):
        return said
    calls = [f"  calls {call.name[:64]} {call.arguments[:_ARGUMENT_CHARS]}" for call in message.tool_calls]
    return "\n".join([said, *calls])
