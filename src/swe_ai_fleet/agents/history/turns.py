"""Turns of a conversation, and how many tokens they have.

A conversation is cut before a reply of the model, never between a call and what answers it. Tokens are estimated from
what the server counted and from what was added since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swe_ai_fleet.domain.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from swe_ai_fleet.tools.truncation import truncate

BYTES_PER_TOKEN = 3.5
"""Before the server has said anything. Code in the usual byte-pair vocabularies has 3 to 4."""
_LEAST, _MOST = 0.5, 8.0
_PRIOR_TOKENS = 200.0
_DECAY = 0.8
_SMALLEST_SAMPLE = 200
_MESSAGE_BYTES = 14
_CALL_BYTES = 40
_IMAGE_BYTES = 3500


def size(message: Message) -> int:
    """What a message weighs, in bytes of UTF-8 with an allowance for what a chat template puts around it."""
    weight = _MESSAGE_BYTES + _bytes(message.content)
    if isinstance(message, AssistantMessage):
        for call in message.tool_calls:
            weight += _CALL_BYTES + _bytes(call.name) + _bytes(call.arguments)
    elif isinstance(message, UserMessage):
        weight += _IMAGE_BYTES * len(message.images)
    return weight


class TokenCount:
    """Tokens of a conversation by its size: the server's last count, and the difference at a rate learnt from it.

    The rate (bytes a token) comes from how much two counts of the server differ, so what every prompt has beside its
    messages (the tools, the template) cancels out; later samples count more.
    """

    def __init__(self) -> None:
        self._tokens = 0
        self._size = 0
        self._sampled_tokens = _PRIOR_TOKENS
        self._sampled_bytes = _PRIOR_TOKENS * BYTES_PER_TOKEN

    @property
    def bytes_per_token(self) -> float:
        return min(_MOST, max(_LEAST, self._sampled_bytes / self._sampled_tokens))

    def calibrate(self, tokens: int, size: int) -> None:
        """The server counted `tokens` in a prompt whose messages have `size` bytes."""
        if tokens <= 0:
            return
        if self._tokens:
            grown_tokens, grown = tokens - self._tokens, size - self._size
            if abs(grown) >= _SMALLEST_SAMPLE and grown_tokens * grown > 0:
                self._sampled_tokens = _DECAY * self._sampled_tokens + abs(grown_tokens)
                self._sampled_bytes = _DECAY * self._sampled_bytes + abs(grown)
        self._tokens, self._size = tokens, size

    def estimate(self, size: int) -> int:
        """Tokens of a prompt whose messages have `size` bytes."""
        return max(round(size / _MOST), round(self._tokens + (size - self._size) / self.bytes_per_token))

    def fitting(self, tokens: int) -> int:
        """The bytes of messages whose prompt has about `tokens`; may be negative where nothing fits."""
        return int(self._size + (tokens - self._tokens) * self.bytes_per_token)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


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
    places = [index for index, message in enumerate(messages) if isinstance(message, ToolMessage)]
    result = list(messages)
    for index in places[: len(places) - keep] if keep else places:
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
