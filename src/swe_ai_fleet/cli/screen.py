"""A command's output: results on standard output, progress and faults on standard error, and its exit code.

Also its input: lines that a person types, and Ctrl-C (or SIGTERM).
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
    """A command fails, by default for bad usage. The message is one line; `hint` says what to do.

    `field` is the faulty field of the contract or name in this program; `option` is the caller's option for it.
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
        """Field, message and hint in one line: `field: message (hint)`."""
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")


def fault_of(error: FleetError, *, starting: bool = False) -> CommandFault:
    """The command fault for a fault of the fleet's parts.

    While a fleet is `starting`, a failed precondition counts as an unavailable dependency.
    """
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
"""Variables that make Rich treat a file as a terminal."""
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
        """Print a command's result: with `json` the document, else the line."""
        if self.json:
            self.document(document)
        else:
            self.line(line)

    def content(self, content: bytes) -> None:
        """Print a file's content: unchanged bytes to a file or pipe, cleaned lines to a terminal."""
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
        _print_line(self.out, text, style)

    def lines(self, lines: Iterable[str], *, nothing: str) -> None:
        """Print lines of a result; without any, the note `nothing`."""
        for line in (printed := list(lines)):
            self.line(line)
        if not printed:
            self.note(nothing)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], nothing: str = "") -> None:
        """Print a table; without rows, the note `nothing` if there is one."""
        if printed := list(rows):
            from swe_ai_fleet.cli.tables import plain_table

            self.out.print(plain_table(columns, printed))
        elif nothing:
            self.note(nothing)

    def block(self, title: str, text: str, *, most: int = _BLOCK_LINES) -> None:
        """Print the first `most` lines of a text under its title; nothing for an empty text."""
        if not text.strip():
            return
        lines = visible(text).splitlines()
        self.line(f"  {title}:")
        for line in lines[:most]:
            self.line(f"    {line}")
        if len(lines) > most:
            self.line(f"    ... {len(lines) - most} more lines; --json has them all", style="dim")

    def note(self, text: str, *, style: str = "dim") -> None:
        """Print a line about the progress; the text may be untrusted."""
        _print_line(self.err, text, style)

    def fault(self, fault: CommandFault) -> None:
        """Print why the command fails: a line, the output of a failed program, and a hint; or a JSON document."""
        if self.json:
            error = {"message": fault.message, "hint": fault.hint, "field": fault.field}
            option = {"option": fault.option} if fault.option else {}
            self.document({"error": {**error, **option}, "exit_code": int(fault.exit_code)})
            return
        where = f"{fault.option or fault.field}: " if fault.field else ""
        first, *printed = fault.message.strip().splitlines() or [""]
        if fault.option:
            # Services write `num_agents is 7`, but the caller wrote the option's name.
            first = first.removeprefix(f"{fault.field.rpartition('.')[2]} is ")
        self.note(f"fleet: {where}{one_line(first, 2000)}", style="bold red")
        for line in printed[:_BLOCK_LINES]:
            self.note(f"  | {one_line(line, 500)}", style="red")
        if fault.hint:
            self.note(f"  hint: {one_line(fault.hint, 2000)}", style="yellow")


class _LazyConsole:
    """The console of a file; Rich is imported for the first output that needs it, which plain lines do not."""

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
        return cast("Console", _LazyConsole(file, quiet=quiet))
    return _whole_console(file, quiet=quiet)


def _whole_console(file: TextIO, *, quiet: bool) -> Console:
    from rich.console import Console

    width = None if file.isatty() else _WIDTH_WITHOUT_TERMINAL
    # Without markup, highlighting and emoji codes, text is printed unchanged.
    return Console(file=file, markup=False, highlight=False, emoji=False, width=width, quiet=quiet)


def _print_line(console: Console, text: str, style: str) -> None:
    text = clean(text)
    # Only Rich knows the positions of tabs after wide characters.
    if isinstance(console, _LazyConsole) and ("\t" not in text or text.isascii()):
        if not console.quiet:
            console.file.write(text.expandtabs() + "\n")
            console.file.flush()
        return
    from rich.text import Text

    console.print(Text(text, style=style), soft_wrap=True)


T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def next_line(read: Callable[[], str]) -> str:
    """The person's next line, read in a daemon thread, which does not delay the program's end. Raises EOFError."""
    loop = asyncio.get_running_loop()
    line_read: asyncio.Future[str] = loop.create_future()

    def finish(line: str | None) -> None:
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
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, line)

    threading.Thread(target=work, daemon=True).start()
    return await line_read


def line_of_terminal() -> str:
    """The next line of standard input. Raises EOFError after the last."""
    if sys.stdin.isatty():
        return input("> ")
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


class Interrupts:
    """The first signal ends `wait` or `race`, the second one cancels the command's task.

    Outside of `wait` and `race` the first signal cancels the task.
    """

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._interrupted = asyncio.Event()
        self._listening = False

    def arm(self) -> None:
        """Handle the signals; called again after a start of Ray in this process, which replaces SIGTERM's handler."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)

    async def wait(self) -> None:
        self.arm()
        self._listening = True
        try:
            await self._interrupted.wait()
        finally:
            self._listening = False

    async def race(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """Return the work as a task once it is done or the first signal came; the signal does not cancel it."""
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

    def _on_signal(self) -> None:
        if self._listening and not self._interrupted.is_set():
            self._interrupted.set()
        else:
            self._task.cancel()


@contextmanager
def interrupts() -> Generator[Interrupts]:
    """Handle the signals in place of Python until the context ends; for the main thread's loop."""
    task = asyncio.current_task()
    assert task is not None
    loop, caught = asyncio.get_running_loop(), Interrupts(task)
    caught.arm()
    try:
        yield caught
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
