"""What a command prints and ends with: results to standard output, progress and faults to standard error, an exit code.

Beside it the other direction: lines that a person types, and Ctrl-C (or SIGTERM) while a command runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from swe_ai_fleet.domain.errors import (
    AlreadyExists,
    FleetError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    Unavailable,
)
from swe_ai_fleet.watching.text import clean, one_line, visible

if TYPE_CHECKING:
    from rich.console import Console


class Exit(IntEnum):
    """Exit codes of `fleet`."""

    ACCEPTED = 0
    NOT_ACCEPTED = 1
    USAGE = 2
    UNAVAILABLE = 3
    STOPPED = 4
    REJECTED = 5
    UNVERIFIED = 6


class CommandFault(Exception):
    """A command cannot go on: bad usage, unless said otherwise. The message is one line; `hint` is the way out.

    `field` is what is wrong, as the contract calls it or this program; `option` is what the caller wrote for it.
    """

    def __init__(self, message: str, *, exit_code: Exit = Exit.USAGE, hint: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint
        self.field = field
        self.option = ""

    @property
    def line(self) -> str:
        """The whole of it in one line: `field: message (hint)`."""
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")


def fault_of(error: FleetError, *, starting: bool = False) -> CommandFault:
    """A fault of our own parts as a command tells it. While a fleet is `starting`, what it needs is what is missing."""
    match error:
        case PreconditionFailed() if starting:
            code = Exit.UNAVAILABLE
        case InvalidRequest() | NotFound() | AlreadyExists() | PreconditionFailed():
            code = Exit.USAGE
        case Unavailable() | ResourceExhausted():
            code = Exit.UNAVAILABLE
        case _:
            code = Exit.NOT_ACCEPTED
    return CommandFault(error.message, exit_code=code, hint=error.hint, field=error.field)


_WIDTH_WITHOUT_TERMINAL = 160
_COLOURS = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables that make Rich take a file for a terminal."""
_BLOCK_LINES = 60


@dataclass(frozen=True, kw_only=True)
class Screen:
    """The two streams of a command. With `json`, `out` gets JSON only and `err` stays silent."""

    json: bool
    out: Console
    err: Console

    @classmethod
    def open(cls, *, json: bool) -> Screen:
        return cls(json=json, out=_console(sys.stdout), err=_console(sys.stderr, quiet=json))

    def document(self, value: Mapping[str, object]) -> None:
        """Print one JSON document on a single line."""
        self.out.file.write(json.dumps(value) + "\n")
        self.out.file.flush()

    def result(self, document: Mapping[str, object], line: str) -> None:
        """Print what a command came to: with `json` the document, else the line."""
        if self.json:
            self.document(document)
        else:
            self.line(line)

    def content(self, content: bytes) -> None:
        """Print a file's content: every byte of it, unless it is a terminal that it would be printed to."""
        if self.out.file.isatty():
            for line in content.decode("utf-8", "replace").splitlines():
                self.line(line)
            return
        self.out.file.flush()
        buffer = getattr(self.out.file, "buffer", None)
        if buffer is None:
            self.out.file.write(content.decode("utf-8", "replace"))
        else:
            buffer.write(content)
            buffer.flush()

    def line(self, text: str, *, style: str = "") -> None:
        """Print a line of a result; the text may be untrusted."""
        _say(self.out, text, style)

    def lines(self, lines: Iterable[str], *, nothing: str) -> None:
        """Print lines of a result; of none of them what is said of that."""
        for line in (printed := list(lines)):
            self.line(line)
        if not printed:
            self.note(nothing)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], nothing: str = "") -> None:
        """Print a table; without a row what is said of that, if anything."""
        if printed := list(rows):
            from swe_ai_fleet.cli.tables import plain_table

            self.out.print(plain_table(columns, printed))
        elif nothing:
            self.note(nothing)

    def block(self, title: str, text: str, *, most: int = _BLOCK_LINES) -> None:
        """Print a text of several lines under its title, the first `most` of them; nothing where there is none."""
        if not text.strip():
            return
        lines = visible(text).splitlines()
        self.line(f"  {title}:")
        for line in lines[:most]:
            self.line(f"    {line}")
        if len(lines) > most:
            self.line(f"    ... {len(lines) - most} more lines; --json has them all", style="dim")

    def note(self, text: str, *, style: str = "dim") -> None:
        """Print a line about the way there; the text may be untrusted."""
        _say(self.err, text, style)

    def fault(self, fault: CommandFault) -> None:
        """Say why the command ends: a line, what a program printed below it, and a hint; or a JSON document."""
        if self.json:
            error = {"message": fault.message, "hint": fault.hint, "field": fault.field}
            option = {"option": fault.option} if fault.option else {}
            self.document({"error": {**error, **option}, "exit_code": int(fault.exit_code)})
            return
        where = f"{fault.option or fault.field}: " if fault.field else ""
        first, *printed = fault.message.strip().splitlines() or [""]
        if fault.option:
            # Services say `num_agents is 7`, which is not what the caller wrote.
            first = first.removeprefix(f"{fault.field.rpartition('.')[2]} is ")
        self.note(f"fleet: {where}{one_line(first, 2000)}", style="bold red")
        for line in printed[:_BLOCK_LINES]:
            self.note(f"  | {one_line(line, 500)}", style="red")
        if fault.hint:
            self.note(f"  hint: {one_line(fault.hint, 2000)}", style="yellow")


class _LaterConsole:
    """The console of a file: made, and Rich loaded, for the first thing that needs it, which lines do not."""

    def __init__(self, file: TextIO, *, quiet: bool) -> None:
        self.file, self.quiet = file, quiet

    @cached_property
    def _whole(self) -> Console:
        return _whole_console(self.file, quiet=self.quiet)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def _console(file: TextIO, *, quiet: bool = False) -> Console:
    reconfigure = getattr(file, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    if not file.isatty() and os.environ.keys().isdisjoint(_COLOURS):
        return cast("Console", _LaterConsole(file, quiet=quiet))
    return _whole_console(file, quiet=quiet)


def _whole_console(file: TextIO, *, quiet: bool) -> Console:
    from rich.console import Console

    width = None if file.isatty() else _WIDTH_WITHOUT_TERMINAL
    # Without markup, highlighting and emoji codes, what is printed means nothing but itself.
    return Console(file=file, markup=False, highlight=False, emoji=False, width=width, quiet=quiet)


def _say(console: Console, text: str, style: str) -> None:
    text = clean(text)
    # Where tabs lead behind wide characters is Rich's to say.
    if isinstance(console, _LaterConsole) and ("\t" not in text or text.isascii()):
        if not console.quiet:
            console.file.write(text.expandtabs() + "\n")
            console.file.flush()
        return
    from rich.text import Text

    console.print(Text(text, style=style), soft_wrap=True)


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
        self.arm()
        self._listening = True
        try:
            await self._asked.wait()
        finally:
            self._listening = False

    async def race(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """The work as a task, when it is done or the first signal came, whichever is sooner. It is not cancelled."""
        doing = asyncio.ensure_future(work)
        interrupted = asyncio.create_task(self.wait())
        try:
            await asyncio.wait({doing, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            doing.cancel()
            raise
        finally:
            interrupted.cancel()
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
    loop, caught = asyncio.get_running_loop(), Interrupts(task)
    caught.arm()
    try:
        yield caught
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
