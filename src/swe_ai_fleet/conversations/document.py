"""Parses the Markdown of a model's answer: lines of styled text, code blocks, tables.

It reads a subset of CommonMark that models write: fenced code, headings, lists, quotes, tables, rules; and within a
line bold, italic, strike-through, code and links. Markup that is not closed on its line is text. The time is linear in
the length. Data beside an answer is a table, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.cells import cell_len, set_cell_size

from swe_ai_fleet.conversations.inline import Mark, Span, read_line, text_of
from swe_ai_fleet.domain.text import one_line

MAX_ROWS = 50
MAX_COLUMNS = 12
CELL_CHARS = 60
PLAIN_WIDTH = 118
TELEGRAM_WIDTH = 56
"""The width of a code block that a phone shows without much scrolling."""
_GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under columns; every row has as many cells as there are columns. Cells are untrusted text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    @classmethod
    def of(cls, records: Sequence[Mapping[str, object]], *, title: str = "") -> Table:
        """Records as a table; a column for each name, in the order of first appearance."""
        names = list(dict.fromkeys(name for record in records for name in record))
        rows = tuple(
            tuple("" if record.get(name) is None else str(record[name]) for name in names) for record in records
        )
        return cls(columns=tuple(names), rows=rows, title=title)


def aligned(table: Table, *, width: int = PLAIN_WIDTH) -> str:
    """The table in aligned columns, for a monospaced font.

    Long cells are cut; columns that do not fit, and rows beyond the 50th, are left out, and a line says so.
    """
    names = [_cell(name) for name in table.columns]
    rows = [[_cell(cell) for cell in row] for row in table.rows[:MAX_ROWS]]
    widths = [
        max([cell_len(name), *(cell_len(row[number]) for row in rows)])
        for number, name in enumerate(names[:MAX_COLUMNS])
    ]
    widths = _narrowed(widths, width)
    shown: list[int] = []
    used = 0
    for number, column in enumerate(widths):
        used += column + len(_GAP)
        if shown and used - len(_GAP) > width:
            break
        shown.append(number)
    lines = [_table_line(names, shown, widths), _GAP.join("-" * widths[number] for number in shown)]
    lines += [_table_line(row, shown, widths) for row in rows]
    return "\n".join([*lines, *_notes(table, names[len(shown) :])])


def piped(table: Table) -> str:
    columns = table.columns[:MAX_COLUMNS]
    lines = [
        f"| {' | '.join(_bar(cell) for cell in columns)} |",
        f"|{'|'.join(' --- ' for _ in columns)}|",
        *(f"| {' | '.join(_bar(cell) for cell in row[:MAX_COLUMNS])} |" for row in table.rows[:MAX_ROWS]),
    ]
    notes = _notes(table, [_cell(name) for name in table.columns[MAX_COLUMNS:]])
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _notes(table: Table, columns: Sequence[str]) -> list[str]:
    notes: list[str] = []
    if columns:
        notes.append(f"(columns left out: {', '.join(columns[:20])})")
    if (more := len(table.rows) - MAX_ROWS) > 0:
        notes.append(f"({more} more rows)")
    return notes


def _narrowed(widths: Sequence[int], width: int) -> list[int]:
    """Narrower columns if the table is too wide: the widest shrink first, down to 12."""
    room = width - len(_GAP) * max(0, len(widths) - 1)
    narrowed = list(widths)
    while (excess := sum(narrowed) - room) > 0 and (widest := max(narrowed)) > 12:
        share = -(-excess // narrowed.count(widest))
        lowest = max(12, widest - share, *(size for size in narrowed if size < widest))
        narrowed = [min(size, lowest) for size in narrowed]
    return narrowed


def _table_line(cells: Sequence[str], shown: Sequence[int], widths: Sequence[int]) -> str:
    return _GAP.join(_padded(cells[number], widths[number]) for number in shown).rstrip()


def _padded(text: str, width: int) -> str:
    return set_cell_size(text, width) if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"


def _cell(text: str) -> str:
    return one_line(text, CELL_CHARS)


def _bar(text: str) -> str:
    return _cell(text).replace("\\", "\\\\").replace("|", "\\|")


# A tilde must not follow the run: otherwise every split of a long run would be tried.
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,}(?!~))([^`]*)")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)")
_BULLET = re.compile(r"([ \t]*)[-*+][ \t]+(\S.*)")
_QUOTE = re.compile(r" {0,3}>[> ]*")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,20}")
_MAX_INDENT = 12
RULE = "———"


class LineKind(StrEnum):
    TEXT = "text"
    QUOTE = "quote"


@dataclass(frozen=True, slots=True, kw_only=True)
class StyledLine:
    """One line of styled text; a blank line has no spans."""

    spans: tuple[Span, ...] = ()
    kind: LineKind = LineKind.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Code, as it was written."""

    text: str
    language: str = ""


Part = StyledLine | Block | Table


def read(text: str) -> tuple[Part, ...]:
    """The parts of an answer in their order, separated by one line end each."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    parts: list[Part] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if fence := _FENCE.fullmatch(line.rstrip()):
            block, number = _block(lines, number + 1, fence[1])
            language = _LANGUAGE.match(fence[2].strip())
            parts.append(Block(text=block, language=language[0] if language else ""))
        elif "|" in line and number + 1 < len(lines) and _delimits(lines[number + 1], len(_cells(line))):
            table, number = _table(lines, number)
            parts.append(table)
        else:
            parts.append(_line(line))
            number += 1
    return tuple(parts)


def _line(line: str) -> StyledLine:
    if not line.strip():
        return StyledLine()
    if heading := _HEADING.fullmatch(line):
        title = heading[1].rstrip()
        title = title.rstrip("#").rstrip() or title
        return StyledLine(spans=tuple(span.marked(Mark.BOLD) for span in read_line(title)))
    bare = line.replace(" ", "").replace("\t", "")
    if len(bare) >= 3 and bare[0] in "-*_" and not bare.strip(bare[0]):
        return StyledLine(spans=(Span(text=RULE),))
    if quote := _QUOTE.match(line):
        return StyledLine(spans=read_line(line[quote.end() :].strip()), kind=LineKind.QUOTE)
    if bullet := _BULLET.fullmatch(line):
        indent = bullet[1].expandtabs(4)[:_MAX_INDENT]
        return StyledLine(spans=(Span(text=f"{indent}• "), *read_line(bullet[2].rstrip())))
    return StyledLine(spans=read_line(line.rstrip()))


def _block(lines: list[str], number: int, fence: str) -> tuple[str, int]:
    """The code up to its closing fence, or to the end; and the number of the next line."""
    code: list[str] = []
    while number < len(lines):
        mark = lines[number].strip()
        if len(mark) >= len(fence) and not mark.strip(fence[0]):
            return "\n".join(code), number + 1
        code.append(lines[number])
        number += 1
    return "\n".join(code), number


def _table(lines: list[str], number: int) -> tuple[Table, int]:
    columns = [text_of(read_line(cell)) for cell in _cells(lines[number])]
    number += 2
    rows: list[tuple[str, ...]] = []
    while number < len(lines) and "|" in lines[number] and lines[number].strip():
        cells = [text_of(read_line(cell)) for cell in _cells(lines[number])][: len(columns)]
        rows.append((*cells, *[""] * (len(columns) - len(cells))))
        number += 1
    return Table(columns=tuple(columns), rows=tuple(rows)), number


def _delimits(line: str, columns: int) -> bool:
    """Whether a line is the row of dashes below the header of a table."""
    if "-" not in line or "|" not in line:
        return False
    cells = _cells(line)
    return len(cells) == columns and all(len(cell) >= 1 and not cell.strip(":").strip("-") for cell in cells)


def _cells(line: str) -> list[str]:
    bare = line.strip()
    bare = bare.removeprefix("|")
    if bare.endswith("|") and not bare.endswith("\\|"):
        bare = bare[:-1]
    cells: list[list[str]] = []
    continues = False
    for part in bare.split("|"):
        escaped = part.endswith("\\")
        text = f"{part[:-1]}|" if escaped else part
        if continues:
            cells[-1].append(text)
        else:
            cells.append([text])
        continues = escaped
    if continues:
        cells[-1][-1] = f"{cells[-1][-1][:-1]}\\"
    return ["".join(cell).strip() for cell in cells]
