"""The conversation of a run: append-only, so that the prefix cache stays warm, until it must be condensed."""

from __future__ import annotations

from collections.abc import Sequence

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import HistoryCondensed
from swe_ai_fleet.domain.message import AssistantMessage, Message, ToolCall, ToolMessage


class History:
    """Everything the model is sent.

    Args:
        messages: What it begins with: the opening, or the whole conversation of a run that goes on.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = list(messages)

    @property
    def messages(self) -> Sequence[Message]:
        return self._messages

    def add(self, *messages: Message) -> None:
        """Append."""
        self._messages.extend(messages)

    def told(self, usage: Usage) -> None:
        """Learn from the server's own count of the prompt it was just sent."""

    def unanswered(self) -> tuple[ToolCall, ...]:
        """The calls of the last reply that no observation answers yet."""
        answered: set[str] = set()
        for message in reversed(self._messages):
            if isinstance(message, ToolMessage):
                answered.add(message.call_id)
            elif isinstance(message, AssistantMessage):
                return tuple(call for call in message.tool_calls if call.call_id not in answered)
            else:
                return ()
        return ()

    async def fit(self, *, step: int) -> HistoryCondensed | None:
        """Condense where the next prompt would not fit; what was done, None for nothing."""
        return None

    async def shrink(self, *, step: int) -> HistoryCondensed | None:
        """Condense because the server said that the prompt is too long; None where nothing more can be taken away."""
        return None

    def forget(self, steps: int, *, step: int) -> HistoryCondensed | None:
        """Take the last `steps` replies with their observations out; None where there are none."""
        return None
