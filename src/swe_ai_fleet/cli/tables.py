"""Tables for people.

Every cell may hold untrusted text and is cleaned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from swe_ai_fleet.watching.text import one_line

_CELL = 400
_WIDE = 120
"""In characters. A narrower terminal shows a table only if no cell has to be broken, a wider one also if the table is
up to half as wide again as the terminal."""
_INDENT = 2
_GAP = "  "
_UNBROKEN = ("execution", "task", "candidate", "agent", "node", "operation", "webhook", "conversation", "session")


class _Listing(Table):
    """A table; where the terminal is too narrow for it, a few lines for each row."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        whole = super().__rich_measure__(console, options.update(max_width=_CELL * len(self.columns))).maximum
        if whole <= (width * 1.5 if width >= _WIDE else width):
            yield from super().__rich_console__(console, options)
            return
        yield ""
        names = [str(column.header) for column in self.columns]
        for row, cells in zip(self.rows, zip(*(column.cells for column in self.columns), strict=True), strict=True):
            first, *others = _packed(names, [str(cell) for cell in cells], width)
            first.stylize_before(row.style or "bold")
            yield first
            yield from (Padding(line, (0, 0, 0, _INDENT), expand=False) for line in others)
        yield str(self.caption or "")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


def _packed(names: Sequence[str], cells: Sequence[str], width: int) -> Iterator[Text]:
    """A row's non-empty cells with their names, packed into lines; a longer cell has its own line."""
    line, room = Text(overflow="fold"), width
    for name, cell in zip(names, cells, strict=True):
        if not cell:
            continue
        part = Text.assemble((f"{name}: " if name else "", "dim"), cell, overflow="fold")
        if line and line.cell_len + len(_GAP) + part.cell_len > room:
            yield line
            line, room = part, width - _INDENT
        else:
            line = Text.assemble(line, _GAP, part, overflow="fold") if line else part
    yield line


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of cells that need no style."""
    table = empty_table(*columns)
    for row in rows:
        add_row(table, *row)
    return table


def empty_table(*columns: str, caption: str | None = None) -> Table:
    """A table without rows, in the style of the command line."""
    table = _Listing(box=SIMPLE_HEAD, pad_edge=False, caption=caption)
    for column in columns:
        # An id that is broken over lines cannot be copied.
        table.add_column(column, overflow="fold", no_wrap=column in _UNBROKEN)
    return table


def add_row(table: Table, *cells: str, style: str = "") -> None:
    table.add_row(*(Text(one_line(cell, _CELL)) for cell in cells), style=style)
