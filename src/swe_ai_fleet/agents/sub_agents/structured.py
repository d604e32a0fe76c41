"""One reply in a given shape: asked for with a schema, read loosely, asked for once more where it does not fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.sub_agents.shapes import Shape, read, schema_of
from swe_ai_fleet.domain.errors import ModelError
from swe_ai_fleet.domain.message import Message, ModelReply, ModelRequest, Sampling, UserMessage
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.tools.failure import ToolFailure, ToolTimeout

S = TypeVar("S", bound=Shape)
ATTEMPTS = 2
AGAIN = "That is not the JSON object that was asked for: {problem}. Answer with that object and nothing else."
_CHARS_PER_TOKEN = 4


async def reply_in_shape(
    model: ChatModel,
    messages: Sequence[Message],
    shape: type[S],
    *,
    budget: Budget,
    check: Callable[[S], str] | None = None,
) -> S:
    """What the model answers, in the shape. Raises ToolFailure naming a time-out, a fault, a limit or an odd answer.

    Args:
        model: Who is asked.
        messages: The conversation, the question last.
        shape: What the answer must be readable as.
        budget: Pays for it, and limits the time.
        check: Says what is wrong with an answer that has the right shape; an empty text: nothing.
    """
    conversation, problem = list(messages), ""
    try:
        async with asyncio.timeout(budget.seconds_left):
            for _ in range(ATTEMPTS):
                reply = await _reply(model, conversation, shape, budget)
                try:
                    answer = read(shape, reply.message.content, *(call.arguments for call in reply.message.tool_calls))
                except ValueError as error:
                    problem = str(error)
                else:
                    problem = check(answer) if check is not None else ""
                    if not problem:
                        return answer
                answered = replace(reply.message, tool_calls=())
                conversation += [answered, UserMessage(content=AGAIN.format(problem=problem))]
    except TimeoutError:
        limit = budget.limits.timeout_seconds
        raise ToolTimeout(f"the sub-agent did not answer within its {limit:.3g} seconds") from None
    except ModelError as error:
        raise ToolFailure(f"the model of the sub-agent gave no answer: {error}") from None
    raise ToolFailure(f"the sub-agent answered {ATTEMPTS} times in a form that cannot be used: {problem}")


async def _reply(model: ChatModel, messages: Sequence[Message], shape: type[Shape], budget: Budget) -> ModelReply:
    left, prompt = budget.tokens_left, sum(len(message.content) for message in messages) // _CHARS_PER_TOKEN
    if left is not None and left <= prompt:
        raise ToolFailure(f"the sub-agent's question has about {prompt} tokens and its budget {left}; ask for less")
    # A server refuses to be asked for more than its context holds, so the limit is sent only where it binds.
    context = (await model.probe()).max_model_len
    bound = None if left is None or left >= context > 0 else left - prompt
    sampling = Sampling(max_tokens=bound)
    reply = await model.reply(ModelRequest(messages, (), sampling, schema=schema_of(shape)))
    budget.settle(reply.usage)
    return reply
