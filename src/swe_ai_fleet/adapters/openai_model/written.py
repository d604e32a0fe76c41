"""Messages as JSON, each written once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from weakref import ref

from swe_ai_fleet.domain.message import Message


@dataclass(frozen=True, slots=True)
class _Written:
    """One message as JSON. `message` goes with the conversation that it is of, and takes this along."""

    message: ref[Message]
    context: tuple[str, ...]
    json: bytes


class WrittenMessages:
    """The JSON of messages for as long as they live, the newest `most_bytes` of it."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.bytes = 0
        self._written: OrderedDict[tuple[int, str], _Written] = OrderedDict()

    @property
    def entries(self) -> int:
        return len(self._written)

    def get(self, message: Message, kind: str, context: tuple[str, ...], write: Callable[[], bytes]) -> bytes:
        """The message in one kind of JSON, written anew where `context`, what else went into it, has changed."""
        key = (id(message), kind)
        written = self._written.get(key)
        if written is not None and written.message() is message and written.context == context:
            self._written.move_to_end(key)
            return written.json
        self._forget(key)
        # Called before another message can have the id.
        written = _Written(ref(message, lambda _: self._forget(key)), context, write())
        self._written[key] = written
        self.bytes += len(written.json)
        while self.bytes > self._most_bytes:
            self._forget(next(iter(self._written)))
        return written.json

    def _forget(self, key: tuple[int, str]) -> None:
        written = self._written.pop(key, None)
        if written is not None:
            self.bytes -= len(written.json)
