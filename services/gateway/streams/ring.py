"""The last messages of an execution, shared by all its watchers: bounded in number and in bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.gateway.access.limits import text_frame
from services.gateway.streams.messages import StreamMessage

RING_MESSAGES = 4_096
BATCH_MESSAGES = 128
BATCH_BYTES = 128 * 1024
_BATCHES_KEPT = 16


class Batch:
    """Consecutive messages; their frames are made once for all watchers.

    `position` is the ring's position after them (0: they are not from a ring), `sequence` the number of the last stored
    event among them or before them.
    """

    __slots__ = ("_frames", "messages", "position", "sequence")

    def __init__(self, messages: Sequence[StreamMessage], *, position: int = 0, sequence: int = 0) -> None:
        self.messages = messages
        self.position = position
        self.sequence = next((message.sequence for message in reversed(messages) if message.sequence), sequence)
        self._frames: dict[bool, bytes] = {}

    def frames(self, events: bool) -> bytes:
        """All messages as WebSocket frames, one per message."""
        if events not in self._frames:
            self._frames[events] = b"".join(text_frame(message.body(events)) for message in self.messages)
        return self._frames[events]


@dataclass(frozen=True, slots=True)
class _Item:
    """A message, and the number of the last stored event up to it."""

    sequence: int
    message: StreamMessage


class Ring:
    """Keeps the last messages; positions only grow.

    Args:
        max_bytes: How many bytes it may hold now. The last message is kept whatever its size.
    """

    def __init__(self, max_bytes: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._items: list[_Item] = []
        self.size = 0
        """Bytes that it holds, approximately."""
        self._dropped_through = 0
        self._batches: dict[int, Batch] = {}
        self.start = 0
        self.sequence = 0

    def add(self, message: StreamMessage) -> None:
        """Add the next message, and drop old ones that no longer fit."""
        self.sequence = message.sequence or self.sequence
        self._items.append(_Item(self.sequence, message))
        self.size += message.size
        self._batches.clear()
        self.trim()

    def trim(self) -> None:
        """Drop the oldest messages that no longer fit."""
        dropped, max_bytes = 0, self._max_bytes()
        while (left := len(self._items) - dropped) > 1 and (left > RING_MESSAGES or self.size > max_bytes):
            self.size -= self._items[dropped].message.size
            self._dropped_through = self._items[dropped].sequence
            dropped += 1
        if dropped:
            del self._items[:dropped]
            self.start += dropped

    def find(self, sequence: int) -> int | None:
        """The position after this event; None if some later messages have been dropped."""
        if sequence < self._dropped_through:
            return None
        return self.start + bisect_right(self._items, sequence, key=lambda item: item.sequence)

    def batch(self, position: int, sequence: int) -> Batch:
        """The next messages from a position on, none at the end; `sequence` is that of the last event before them."""
        cached = self._batches.get(position)
        if cached is not None:
            return cached
        messages: list[StreamMessage] = []
        size = 0
        for item in self._items[position - self.start : position - self.start + BATCH_MESSAGES]:
            messages.append(item.message)
            size += item.message.size
            if size > BATCH_BYTES:
                break
        batch = Batch(messages, position=position + len(messages), sequence=sequence)
        if messages:
            # Watchers at the same position share a batch. With watchers at many positions old batches are forgotten.
            if len(self._batches) >= _BATCHES_KEPT:
                self._batches.clear()
            self._batches[position] = batch
        return batch
