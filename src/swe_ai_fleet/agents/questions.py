"""Questions to a model that can call nothing: asked in a form, read, and asked once more where the form is another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.domain.event import MessageAdded, ModelReplied
from swe_ai_fleet.domain.message import Message, ModelReply, ModelRequest, Sampling, UserMessage
from swe_ai_fleet.ports import ChatModel, Journal

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class AnswerForm(Generic[T]):
    """The form in which an answer is asked for.

    Attributes:
        schema: JSON schema that the reply's text is to follow.
        read: Makes of the texts in which the answer may stand what it means. Raises ValueError with what is wrong.
        again: What the model is told where it could not be read; names the `{problem}`.
        attempts: Replies before it counts as unreadable.
    """

    schema: Mapping[str, object]
    read: Callable[[Sequence[str]], T]
    again: str = ""
    attempts: int = 2


class Questions:
    """Questions to one model, out of one budget.

    Args:
        model: Who is asked.
        budget: Pays for it.
        journal: Where replies are recorded; None: nowhere.
        step: How many replies there were before.
    """

    def __init__(self, model: ChatModel, budget: Budget, journal: Journal | None = None, *, step: int = 0) -> None:
        self.model, self.budget = model, budget
        self._journal = journal
        self.step: int = step

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The reply to a request, recorded and paid for. Raises ModelError."""
        began = time.monotonic()
        reply = await self.model.reply(request)
        self.budget.settle(reply.usage)
        self.step += 1
        if self._journal is not None:
            elapsed_ms = round((time.monotonic() - began) * 1000)
            self._journal.post(ModelReplied(step=self.step, reply=reply, duration_ms=elapsed_ms))
        return reply

    def add(self, message: UserMessage) -> None:
        """Record a message of the conversation."""
        if self._journal is not None:
            self._journal.post(MessageAdded(step=self.step, message=message))

    async def answer(self, messages: Sequence[Message], form: AnswerForm[T], sampling: Sampling | None = None) -> T:
        """What the model answers. Raises ValueError with what is wrong with its last reply, ModelError."""
        conversation, attempt = list(messages), 0
        while True:
            reply = await self.reply(ModelRequest(conversation, (), sampling or Sampling(), schema=form.schema))
            attempt += 1
            try:
                return form.read([reply.message.content, *(call.arguments for call in reply.message.tool_calls)])
            except ValueError as error:
                if attempt == form.attempts or 0 in (self.budget.tokens_left, self.budget.cost_left):
                    raise
                again = UserMessage(content=form.again.format(problem=error))
            self.add(again)
            conversation += [replace(reply.message, tool_calls=()), again]
