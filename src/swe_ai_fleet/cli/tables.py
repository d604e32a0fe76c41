"""Tables for people.

Every cell may hold untrusted text and is cleaned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.watching.text import one_line

_CELL = 400
_UNBROKEN = ("execution", "candidate", "agent", "node", "operation", "webhook", "conversation", "session")


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of cells that need no style."""
    table = empty_table(*columns)
    for row in rows:
        add_row(table, *row)
    return table


def print_rows(screen: Screen, columns: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> None:
    """Print a table; of an empty list what is said of it."""
    if rows:
        screen.out.print(plain_table(columns, rows))
    else:
        screen.note(nothing)


def print_lines(screen: Screen, lines: Sequence[str], *, nothing: str) -> None:
    if not lines:
        screen.note(nothing)
    for line in lines:
        screen.line(line)


def empty_table(*columns: str, caption: str | None = None) -> Table:
    """A table without rows, as all of the command line's look."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=caption)
    for column in columns:
        # An id that is broken over lines cannot be copied.
        table.add_column(column, overflow="fold", no_wrap=column in _UNBROKEN)
    return table


def add_row(table: Table, *cells: str, style: str = "") -> None:
    """A row more."""
    table.add_row(*(Text(one_line(cell, _CELL)) for cell in cells), style=style)
