"""Where a command prints: results to standard output, progress and faults to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.text import Text

from swe_ai_fleet.cli.exits import CommandFault
from swe_ai_fleet.watching.text import clean, one_line, visible

_WIDTH_WITHOUT_TERMINAL = 160
_BLOCK_LINES = 60


@dataclass(frozen=True, kw_only=True)
class Screen:
    """The two streams of a command. With `json`, `out` gets JSON only and `err` stays silent."""

    json: bool
    out: Console
    err: Console

    @classmethod
    def open(cls, *, json: bool) -> Screen:
        """The screen of this process."""
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
        self.out.print(Text(clean(text), style=style), soft_wrap=True)

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
        self.err.print(Text(clean(text), style=style), soft_wrap=True)

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


def _console(stream: TextIO, *, quiet: bool = False) -> Console:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
    # Without markup, highlighting and emoji codes, what is printed means nothing but itself.
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width, quiet=quiet)
