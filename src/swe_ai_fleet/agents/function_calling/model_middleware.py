"""Middleware of a function-calling agent's model: retries, tools shown in place of others, and whole results.

A model is tried again where its server failed. Where an answer is asked for, results of calls are read as whole as
there is room for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from swe_ai_fleet.agents.model_middleware import ModelWrapper
from swe_ai_fleet.domain.errors import ContextTooLong, ModelUnavailable
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    ModelCapabilities,
    ModelReply,
    ModelRequest,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.tools.truncation import beginning

RETRY_WAITS = (5.0, 10.0)
_JITTER = 0.1
_LEAST_RESULT_CHARS = 200
_CHARS_PER_TOKEN = 3
_UNKNOWN_CONTEXT_TOKENS = 32_768
_PROMPT_SHARE = 0.75


class RetryingModel(ModelWrapper):
    """A `ChatModel` whose calls are tried again after a wait each; the one behind it should not retry by itself.

    Args:
        model: What is called.
        waits: Seconds before each further try, so a call is tried once more often than there are waits; up to a tenth
            is added, lest all agents come back at the same moment.
        told: Hears of each try that failed and is followed by another.
    """

    def __init__(
        self, model: ChatModel, *, waits: Sequence[float] = RETRY_WAITS, told: Callable[[str], None] | None = None
    ) -> None:
        self.model = model
        self._waits = tuple(waits)
        self._told = told

    async def probe(self) -> ModelCapabilities:
        """As the model behind it, tried again. Raises ModelError."""
        for number, wait in enumerate(self._waits, start=1):
            try:
                return await self.model.probe()
            except ModelUnavailable as fault:
                await self._rest(number, wait, fault)
        return await self.model.probe()

    async def reply(self, request: ModelRequest) -> ModelReply:
        """As the model behind it, tried again. Raises ContextTooLong, ModelRejected, ModelUnavailable."""
        for number, wait in enumerate(self._waits, start=1):
            try:
                return await self.model.reply(request)
            except ModelUnavailable as fault:
                await self._rest(number, wait, fault)
        return await self.model.reply(request)

    async def _rest(self, number: int, wait: float, fault: ModelUnavailable) -> None:
        if self._told is not None:
            tries = len(self._waits) + 1
            self._told(f"the model call failed (try {number} of {tries}), the next one is in {wait:g} s: {fault}")
        await asyncio.sleep(wait * random.uniform(1.0, 1.0 + _JITTER))  # noqa: S311


class ShownTools(ModelWrapper):
    """A `ChatModel` that is offered some tools under another description, or not at all.

    Args:
        model: What is called.
        instead: By a tool's name, what stands in its place; None: nothing does.
    """

    def __init__(self, model: ChatModel, instead: Mapping[str, OperationSpec | None]) -> None:
        self.model = model
        self._instead = dict(instead)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """As the model behind it. Raises ContextTooLong, ModelRejected, ModelUnavailable."""
        offered = tuple(shown for tool in request.tools if (shown := self._instead.get(tool.name, tool)) is not None)
        return await self.model.reply(replace(request, tools=offered))


def room(capabilities: ModelCapabilities) -> int:
    """How many characters a prompt may have that leaves a quarter of the model's context to its reply."""
    return round((capabilities.max_model_len or _UNKNOWN_CONTEXT_TOKENS) * _CHARS_PER_TOKEN * _PROMPT_SHARE)


def with_whole_results(
    messages: Sequence[Message], results: Mapping[str, str], *, max_chars: int
) -> tuple[Message, ...]:
    """The conversation with its results as they were before they were cut.

    Args:
        messages: The conversation.
        results: Whole results by call id; others stay as they are.
        max_chars: How long it may get, roughly; the longest results give way first.
    """
    whole = {
        message.call_id: results.get(message.call_id, message.content)
        for message in messages
        if isinstance(message, ToolMessage)
    }
    rest = sum(len(message.content) for message in messages if not isinstance(message, ToolMessage))
    share = _share([len(text) for text in whole.values()], max(0, max_chars - rest))
    return tuple(
        replace(message, content=beginning(whole[message.call_id], share))
        if isinstance(message, ToolMessage)
        else message
        for message in messages
    )


def transcript(messages: Sequence[Message]) -> str:
    """The conversation as text, speaker by speaker, without its system message."""
    names = {call.call_id: call.name for message in messages for call in _calls(message)}
    parts: list[str] = []
    for message in messages:
        if isinstance(message, SystemMessage):
            continue
        if isinstance(message, ToolMessage):
            parts.append(f"[result of {names.get(message.call_id, 'a call')}]\n{message.content}")
        else:
            calls = [f"[calls {call.name} with {call.arguments}]" for call in _calls(message)]
            parts.append("\n".join(part for part in (f"[{message.role}]", message.content, *calls) if part))
    return "\n\n".join(parts)


def _share(lengths: Sequence[int], left: int) -> int:
    """The longest a text may be so that all of them fit: what short ones leave goes to the long ones."""
    longer = sorted(lengths)
    while longer and longer[0] * len(longer) <= left:
        left -= longer.pop(0)
    return max(_LEAST_RESULT_CHARS, left // len(longer)) if longer else max(lengths, default=0)


def _calls(message: Message) -> Sequence[ToolCall]:
    return message.tool_calls if isinstance(message, AssistantMessage) else ()


class WholeResults(ModelWrapper):
    """A `ChatModel` that, asked without tools and so for an answer, reads results as they were before they were cut.

    Args:
        model: What is called.
        results: Whole results by call id; may grow.
    """

    def __init__(self, model: ChatModel, results: Mapping[str, str]) -> None:
        self.model = model
        self._results = results

    async def reply(self, request: ModelRequest) -> ModelReply:
        """As the model behind it. Raises ContextTooLong, ModelRejected, ModelUnavailable."""
        if not request.tools and self._results:
            capabilities = await self.model.probe()
            whole = with_whole_results(request.messages, self._results, max_chars=room(capabilities))
            # the estimate was wrong: what the history holds has fitted so far
            with suppress(ContextTooLong):
                return await self.model.reply(replace(request, messages=whole))
        return await self.model.reply(request)
