"""Data beside an answer, as rows and columns."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swe_ai_fleet.domain.text import one_line

MAX_ROWS = 50
MAX_COLUMNS = 12
CELL_CHARS = 60
PLAIN_WIDTH = 118
TELEGRAM_WIDTH = 56
"""What a telephone shows of a code block without scrolling far."""
_GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under columns; every row has as many cells as there are columns. Cells are untrusted text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    @classmethod
    def of(cls, records: Sequence[Mapping[str, object]], *, title: str = "") -> Table:
        """Records as a table; a column for each name among them, in the order in which they come up."""
        names = list(dict.fromkeys(name for record in records for name in record))
        rows = tuple(tuple(_text(record.get(name)) for name in names) for record in records)
        return cls(columns=tuple(names), rows=rows, title=title)


def aligned(table: Table, *, width: int = PLAIN_WIDTH) -> str:
    """The table in columns of one width each, for a font of one width.

    Cells that are too long are cut; columns that do not fit any more, and rows beyond the 50th, are left out, and a
    line says so.

    Args:
        table: The table.
        width: Columns of the terminal that a line may take.
    """
    names, rows = [_cell(name) for name in table.columns], [[_cell(cell) for cell in row] for row in _shown(table)]
    widths = [
        max([_width(name), *(_width(row[number]) for row in rows)]) for number, name in enumerate(names[:MAX_COLUMNS])
    ]
    widths = _squeezed(widths, width)
    shown: list[int] = []
    used = 0
    for number, one in enumerate(widths):
        used += one + len(_GAP)
        if shown and used - len(_GAP) > width:
            break
        shown.append(number)
    lines = [_line(names, shown, widths), _GAP.join("-" * widths[number] for number in shown)]
    lines += [_line(row, shown, widths) for row in rows]
    return "\n".join([*lines, *_notes(table, names[len(shown) :])])


def piped(table: Table) -> str:
    """The table in Markdown."""
    shown = table.columns[:MAX_COLUMNS]
    lines = [
        f"| {' | '.join(_bar(cell) for cell in shown)} |",
        f"|{'|'.join(' --- ' for _ in shown)}|",
        *(f"| {' | '.join(_bar(cell) for cell in row[:MAX_COLUMNS])} |" for row in _shown(table)),
    ]
    notes = _notes(table, [_cell(name) for name in table.columns[MAX_COLUMNS:]])
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _shown(table: Table) -> Sequence[tuple[str, ...]]:
    return table.rows[:MAX_ROWS]


def _notes(table: Table, columns: Sequence[str]) -> list[str]:
    notes: list[str] = []
    if columns:
        notes.append(f"(columns left out: {', '.join(columns[:20])})")
    if (more := len(table.rows) - MAX_ROWS) > 0:
        notes.append(f"({more} more rows)")
    return notes


def _squeezed(widths: Sequence[int], width: int) -> list[int]:
    """Narrower columns where all together are too wide: the widest give way first, down to 12."""
    room = width - len(_GAP) * max(0, len(widths) - 1)
    found = list(widths)
    while sum(found) > room and (widest := max(found)) > 12:
        others = [one for one in found if one < widest]
        lowest = max([12, *others])
        many = found.count(widest)
        lowest = max(lowest, widest - -(-(sum(found) - room) // many))
        found = [min(one, lowest) for one in found]
    return found


def _line(cells: Sequence[str], shown: Sequence[int], widths: Sequence[int]) -> str:
    return _GAP.join(_padded(cells[number], widths[number]) for number in shown).rstrip()


def _padded(text: str, width: int) -> str:
    have = _width(text)
    if have <= width:
        return text + " " * (width - have)
    kept, used = "", 0
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        kept += character
    return kept + "…" + " " * max(0, width - 1 - _width(kept))


def _width(text: str) -> int:
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    """How many columns a terminal gives a character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _cell(text: str) -> str:
    return one_line(text, CELL_CHARS)


def _bar(text: str) -> str:
    return _cell(text).replace("\\", "\\\\").replace("|", "\\|")


def _text(value: object) -> str:
    return "" if value is None else str(value)
