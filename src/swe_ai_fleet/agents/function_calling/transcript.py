"""A conversation with the results of its calls as whole as there is room for, as messages or as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    ModelCapabilities,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from swe_ai_fleet.tools.truncation import beginning

_LEAST_CHARS = 200
_CHARS_PER_TOKEN = 3
_UNKNOWN_CONTEXT_TOKENS = 32_768
_USED = 0.75


def room(capabilities: ModelCapabilities) -> int:
    """How many characters a prompt may have that leaves a quarter of the model's context to its reply."""
    return round((capabilities.max_model_len or _UNKNOWN_CONTEXT_TOKENS) * _CHARS_PER_TOKEN * _USED)


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
    return max(_LEAST_CHARS, left // len(longer)) if longer else max(lengths, default=0)


def _calls(message: Message) -> Sequence[ToolCall]:
    return message.tool_calls if isinstance(message, AssistantMessage) else ()
