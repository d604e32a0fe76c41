"""One pipe's bytes, kept within bounds."""

from __future__ import annotations

from swe_ai_fleet.domain.command import Output


class Capture:
    """Keeps the first and the last `limit` bytes of what it is fed, and counts the rest."""

    __slots__ = ("_head", "_limit", "_tail", "_total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    @property
    def total(self) -> int:
        """How many bytes there were."""
        return self._total

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        room = self._limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cutting at twice the limit makes the copying linear in what flows through.
        if len(self._tail) > 2 * self._limit:
            self._cut()

    def output(self) -> Output:
        self._cut()
        return Output(head=bytes(self._head), tail=bytes(self._tail), total=self._total)

    def _cut(self) -> None:
        surplus = len(self._tail) - self._limit
        if surplus > 0:
            del self._tail[:surplus]
