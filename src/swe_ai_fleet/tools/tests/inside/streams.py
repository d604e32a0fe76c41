"""How results reach the supervisor: appended to a file by a plug-in in the runner, or read off what the runner prints.

Standard library only; this runs in the sandbox. One stream serves all attempts of a run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

Append = Callable[..., Any]


class Stream:
    """A runner whose plug-in writes the events itself and skips what FLEET_TEST_DONE says has ended."""

    reads_output = False

    def feed(self, data: bytes, append: Append) -> None:
        """Take what the runner printed; pass it on, and append the events in it."""

    def close(self, append: Append) -> None:
        """The end of an attempt's output."""

    def complete(self, code: int) -> bool:
        """Whether a runner that ended with this code, and without a `finish` event, has run everything."""
        return False

    def said(self, name: str) -> str:
        """What a test that did not end has printed."""
        return ""

    def again(self, argv: list[str], culprits: Sequence[str]) -> list[str] | None:
        """The command that runs what is left, without the tests that hung or crashed; None where there is no way."""
        return argv if culprits else None


class Output(Stream):
    """A runner of which only the output and the exit code are known."""

    def complete(self, code: int) -> bool:
        return True

    def again(self, argv: list[str], culprits: Sequence[str]) -> list[str] | None:
        return None


def stream(kind: str) -> Stream:
    """The stream of a kind: `file`, `output`, `go` or `cargo`."""
    if kind == "go":
        from go_stream import Go

        return Go()
    if kind == "cargo":
        from cargo_stream import Cargo

        return Cargo()
    return {"file": Stream, "output": Output}[kind]()
