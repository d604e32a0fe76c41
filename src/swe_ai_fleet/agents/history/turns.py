"""Where a conversation may be cut: before a reply of the model, never between a call and what answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swe_ai_fleet.agents.history.token_count import size
from swe_ai_fleet.domain.message import AssistantMessage, Message, ToolCall, ToolMessage
from swe_ai_fleet.tools.truncation import truncate

CLEARED = "[cleared to save room: "
_NOTE_BYTES = 400
_FIRST_LINE_CHARS = 80
_CUT_NOTE_BYTES = 120


def turns(messages: Sequence[Message], *, start: int = 0) -> list[int]:
    """Where each turn begins: a reply of the model, with everything up to the next one."""
    return [index for index in range(start, len(messages)) if isinstance(messages[index], AssistantMessage)]


def calls_by_id(messages: Sequence[Message]) -> dict[str, ToolCall]:
    return {
        call.call_id: call
        for message in messages
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls
    }


def cleared(messages: Sequence[Message], *, room: int, keep: int) -> list[Message]:
    """The same conversation with its oldest tool outputs replaced by a line each, until it has `room` bytes.

    The newest `keep` outputs stay, and those that are hardly longer than the line.
    """
    total, calls = sum(map(size, messages)), calls_by_id(messages)
    found = [index for index, message in enumerate(messages) if isinstance(message, ToolMessage)]
    result = list(messages)
    for index in found[: len(found) - keep] if keep else found:
        if total <= room:
            break
        message = messages[index]
        if not isinstance(message, ToolMessage) or size(message) <= _NOTE_BYTES:
            continue
        result[index] = note = _note(message, calls.get(message.call_id))
        total += size(note) - size(message)
    return result


def tail(messages: Sequence[Message], *, start: int, room: int, at_least_one: bool = False) -> list[Message]:
    """The last whole turns from `start` on that have `room` bytes together.

    A last turn that is longer by itself comes with its tool outputs cut, if that helps. `at_least_one`: it comes in any
    case, for its calls are still to be answered.
    """
    begins = turns(messages, start=start)
    chosen, left = len(messages), room
    for index in reversed(begins):
        left -= sum(size(message) for message in messages[index:chosen])
        if left < 0:
            break
        chosen = index
    if chosen < len(messages) or not begins:
        return list(messages[chosen:])
    shortened = _shortened(messages[begins[-1] :], room)
    return shortened if at_least_one or sum(map(size, shortened)) <= room else []


def _shortened(turn: Sequence[Message], room: int) -> list[Message]:
    outputs = [message for message in turn if isinstance(message, ToolMessage)]
    fixed = sum(size(message) for message in turn) - sum(size(message) for message in outputs)
    share = max(0, (room - fixed) // max(1, len(outputs)) - _CUT_NOTE_BYTES)
    return [
        cut(message, share * len(message.content) // size(message)) if isinstance(message, ToolMessage) else message
        for message in turn
    ]


def cut(message: Message, chars: int) -> Message:
    """The message itself if its text has at most `chars` characters, else one with head and tail of it."""
    content = truncate(message.content, chars)
    return message if content is message.content else replace(message, content=content)


def _note(message: ToolMessage, call: ToolCall | None) -> ToolMessage:
    name = call.name[:64] if call is not None else "a tool"
    first_line = message.content[:_FIRST_LINE_CHARS].partition("\n")[0]
    content = (
        f"{CLEARED}{len(message.content)} characters that {name} gave here, beginning with {first_line!r}; "
        f"the log has them under the call {message.call_id}. Call it again if you need them.]"
    )
    return replace(message, content=content)
