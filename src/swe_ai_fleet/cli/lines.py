"""Lines that a person types."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress


async def next_line(read: Callable[[], str]) -> str:
    """The person's next line, read in a thread that the end of the program does not wait for. Raises EOFError."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str] = loop.create_future()

    def told(line: str | None) -> None:
        if not found.done():
            if line is None:
                found.set_exception(EOFError())
            else:
                found.set_result(line)

    def work() -> None:
        try:
            line = read()
        except (EOFError, OSError, ValueError):
            line = None
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(told, line)

    threading.Thread(target=work, daemon=True).start()
    return await found


def line_of_terminal() -> str:
    """The next line of standard input. Raises EOFError behind the last."""
    if sys.stdin.isatty():
        return input("> ")
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
