"""What a container prints, kept within bounds while it flows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from swe_ai_fleet.domain.command import Output
from swe_ai_fleet.sandbox.runner import Capture

KEPT_BYTES = 256 * 1024
"""Of each stream, so many bytes from the head and as many from the tail."""

_HEADER_BYTES = 8
_PIECE_BYTES = 64 * 1024


class Readable(Protocol):
    def read(self, amount: int) -> bytes: ...


class Printout:
    """Both streams of a command in the order in which they came; it can be read at any time.

    Args:
        limit: Bytes after which nothing more is taken.
    """

    def __init__(self, limit: int) -> None:
        self._kept = Capture(KEPT_BYTES)
        self._limit = limit

    @property
    def flooded(self) -> bool:
        """Whether there was more than the limit."""
        return self._kept.total > self._limit

    @property
    def output(self) -> Output:
        """What was kept, and how much there was."""
        return self._kept.output()

    def text(self) -> str:
        """The output as text, with the elided count in its place."""
        return self.output.text().rstrip("\n")

    def add(self, data: bytes) -> bool:
        """Take the next bytes; whether more are wanted."""
        self._kept.feed(data)
        return not self.flooded

    def collect(self, stream: Readable) -> None:
        """Read a multiplexed stream (eight bytes of header, then so many of output) to its end or to the limit."""
        for data in _frames(stream):
            if not self.add(data):
                return


def _frames(stream: Readable) -> Iterator[bytes]:
    while len(header := _exactly(stream, _HEADER_BYTES)) == _HEADER_BYTES:
        left = int.from_bytes(header[4:], "big")
        while left:
            data = stream.read(min(left, _PIECE_BYTES))
            if not data:
                return
            left -= len(data)
            yield data


def _exactly(stream: Readable, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.read(size - len(data))
        if not piece:
            break
        data += piece
    return data
