"""The last messages of an execution, for all who watch it: bounded in number and in bytes."""

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
    """Messages that follow each other; what is sent of them is made once for all who are sent it.

    `position` is where in the ring the next one will be (0: these are from no ring), `sequence` the number of the last
    stored event among them or before them.
    """

    __slots__ = ("_frames", "messages", "position", "sequence")

    def __init__(self, messages: Sequence[StreamMessage], *, position: int = 0, sequence: int = 0) -> None:
        self.messages = messages
        self.position = position
        self.sequence = next((message.sequence for message in reversed(messages) if message.sequence), sequence)
        self._frames: dict[bool, bytes] = {}

    def frames(self, events: bool) -> bytes:
        """All of them as WebSocket frames, one a message."""
        if events not in self._frames:
            self._frames[events] = b"".join(text_frame(message.body(events)) for message in self.messages)
        return self._frames[events]


@dataclass(frozen=True, slots=True)
class _Item:
    """A message, and the number of the last stored event up to it."""

    at: int
    message: StreamMessage


class Ring:
    """Keeps the last messages; each has a position that only grows.

    Args:
        room: How many bytes it may hold now. The last message is kept however large it is.
    """

    def __init__(self, room: Callable[[], int]) -> None:
        self._room = room
        self._items: list[_Item] = []
        self.size = 0
        """Bytes that it holds, about."""
        self._dropped_through = 0
        self._batches: dict[int, Batch] = {}
        self.start = 0
        self.sequence = 0

    def add(self, message: StreamMessage) -> None:
        """Take in the next message; old ones make room for it."""
        self.sequence = message.sequence or self.sequence
        self._items.append(_Item(self.sequence, message))
        self.size += message.size
        self._batches.clear()
        self.trim()

    def trim(self) -> None:
        """Drop what there is no room for."""
        dropped, room = 0, self._room()
        while (left := len(self._items) - dropped) > 1 and (left > RING_MESSAGES or self.size > room):
            self.size -= self._items[dropped].message.size
            self._dropped_through = self._items[dropped].at
            dropped += 1
        if dropped:
            del self._items[:dropped]
            self.start += dropped

    def find(self, sequence: int) -> int | None:
        """Where what follows this event begins; None where not all of that is here any more."""
        if sequence < self._dropped_through:
            return None
        return self.start + bisect_right(self._items, sequence, key=lambda item: item.at)

    def batch(self, position: int, sequence: int) -> Batch:
        """Some messages from a position on, none at the end; `sequence` is that of the last event before them."""
        known = self._batches.get(position)
        if known is not None:
            return known
        messages: list[StreamMessage] = []
        size = 0
        for item in self._items[position - self.start : position - self.start + BATCH_MESSAGES]:
            messages.append(item.message)
            size += item.message.size
            if size > BATCH_BYTES:
                break
        batch = Batch(messages, position=position + len(messages), sequence=sequence)
        if messages:
            # Who is at the same place is sent the same; who is at many places is not waited for.
            if len(self._batches) >= _BATCHES_KEPT:
                self._batches.clear()
            self._batches[position] = batch
        return batch
