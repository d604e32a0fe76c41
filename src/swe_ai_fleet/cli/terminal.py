"""The terminal: lines that a person types, and Ctrl-C (or SIGTERM) while a command runs."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def next_line(read: Callable[[], str]) -> str:
    """The person's next line, read in a thread that the end of the program does not wait for. Raises EOFError."""
    loop = asyncio.get_running_loop()
    line_read: asyncio.Future[str] = loop.create_future()

    def told(line: str | None) -> None:
        if not line_read.done():
            if line is None:
                line_read.set_exception(EOFError())
            else:
                line_read.set_result(line)

    def work() -> None:
        try:
            line = read()
        except (EOFError, OSError, ValueError):
            line = None
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(told, line)

    threading.Thread(target=work, daemon=True).start()
    return await line_read


def line_of_terminal() -> str:
    """The next line of standard input. Raises EOFError behind the last."""
    if sys.stdin.isatty():
        return input("> ")
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


class Interrupts:
    """The first signal asks, the second one insists by cancelling the command's task.

    Outside of `wait` and `race` there is nobody to ask, and the first signal cancels.
    """

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._asked = asyncio.Event()
        self._listening = False

    def arm(self) -> None:
        """Take the signals (again): starting Ray in this process takes SIGTERM away."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._arrived)

    async def wait(self) -> None:
        """Wait for the first signal."""
        self.arm()
        self._listening = True
        try:
            await self._asked.wait()
        finally:
            self._listening = False

    async def race(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """The work as a task, when it is done or the first signal came, whichever is sooner. It is not cancelled."""
        doing = asyncio.ensure_future(work)
        asked = asyncio.create_task(self.wait())
        try:
            await asyncio.wait({doing, asked}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            doing.cancel()
            raise
        finally:
            asked.cancel()
        assert isinstance(doing, asyncio.Task)
        return doing

    def _arrived(self) -> None:
        if self._listening and not self._asked.is_set():
            self._asked.set()
        else:
            self._task.cancel()


@contextmanager
def interrupts() -> Generator[Interrupts]:
    """Take the signals over from Python for as long as the context lasts; for the main thread's loop."""
    task = asyncio.current_task()
    assert task is not None
    loop, taken = asyncio.get_running_loop(), Interrupts(task)
    taken.arm()
    try:
        yield taken
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
