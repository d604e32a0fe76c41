"""How results reach the supervisor: appended to a file by a plug-in in the runner, or read off what the runner prints.

Standard library only; this runs in the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

Append = Callable[..., Any]


class Stream:
    """A runner whose plug-in writes the events itself and skips what FLEET_TEST_DONE says has ended."""

    reads_output = False

    def feed(self, data: bytes, append: Append) -> None:
        """Take what the runner printed; pass it on, and append the events in it."""

    def close(self, append: Append) -> None:
        """The end of the output."""

    def complete(self, code: int) -> bool:
        """Whether a runner that ended with this code, and without a `finish` event, has run everything."""
        return False

    def again(self, argv: list[str], ended: Collection[str], culprits: Collection[str]) -> list[str] | None:
        """The command that runs what is left, without the tests that hung or crashed; None where there is no way."""
        return argv


class Output(Stream):
    """A runner of which only the output and the exit code are known."""

    def complete(self, code: int) -> bool:
        return True

    def again(self, argv: list[str], ended: Collection[str], culprits: Collection[str]) -> list[str] | None:
        return None


STREAMS: dict[str, type[Stream]] = {"file": Stream, "output": Output}
