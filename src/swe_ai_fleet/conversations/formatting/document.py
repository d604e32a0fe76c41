"""The Markdown of a model's answer, read: lines of styled text, code blocks, tables.

What models write is read, not all of CommonMark: fenced code, headings, lists, quotes, tables, rules; and within a
line bold, italic, struck out, code and links. Marks that are not closed on their line are text. Linear in the length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from swe_ai_fleet.conversations.formatting.inline import Span, read_line, text_of
from swe_ai_fleet.conversations.formatting.marks import Mark
from swe_ai_fleet.conversations.formatting.tables import Table

# Nothing that goes on with a run of tildes may follow it: else every way to split a long one would be tried.
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,}(?!~))([^`]*)")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)")
_BULLET = re.compile(r"([ \t]*)[-*+][ \t]+(\S.*)")
_QUOTE = re.compile(r" {0,3}>[> ]*")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,20}")
_MAX_INDENT = 12
RULE = "———"


class Kind(StrEnum):
    """What a line is."""

    TEXT = "text"
    QUOTE = "quote"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of styled text; without spans a blank one."""

    spans: tuple[Span, ...] = ()
    kind: Kind = Kind.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Code, as it was written."""

    text: str
    language: str = ""


Part = Line | Block | Table


def read(text: str) -> tuple[Part, ...]:
    """The parts of an answer in their order, one line end between two of them."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    parts: list[Part] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if fence := _FENCE.fullmatch(line.rstrip()):
            block, number = _block(lines, number + 1, fence[1])
            named = _LANGUAGE.match(fence[2].strip())
            parts.append(Block(text=block, language=named[0] if named else ""))
        elif "|" in line and number + 1 < len(lines) and _delimits(lines[number + 1], len(_cells(line))):
            table, number = _table(lines, number)
            parts.append(table)
        else:
            parts.append(_line(line))
            number += 1
    return tuple(parts)


def _line(line: str) -> Line:
    if not line.strip():
        return Line()
    if heading := _HEADING.fullmatch(line):
        title = heading[1].rstrip()
        title = title.rstrip("#").rstrip() or title
        return Line(spans=tuple(span.marked(Mark.BOLD) for span in read_line(title)))
    if _is_rule(line):
        return Line(spans=(Span(text=RULE),))
    if quote := _QUOTE.match(line):
        return Line(spans=read_line(line[quote.end() :].strip()), kind=Kind.QUOTE)
    if bullet := _BULLET.fullmatch(line):
        indent = bullet[1].expandtabs(4)[:_MAX_INDENT]
        return Line(spans=(Span(text=f"{indent}• "), *read_line(bullet[2].rstrip())))
    return Line(spans=read_line(line.rstrip()))


def _is_rule(line: str) -> bool:
    bare = line.replace(" ", "").replace("\t", "")
    return len(bare) >= 3 and bare[0] in "-*_" and not bare.strip(bare[0])


def _block(lines: list[str], number: int, fence: str) -> tuple[str, int]:
    """The code up to the fence that closes it, or to the end; and where to go on."""
    found: list[str] = []
    while number < len(lines):
        mark = lines[number].strip()
        if len(mark) >= len(fence) and not mark.strip(fence[0]):
            return "\n".join(found), number + 1
        found.append(lines[number])
        number += 1
    return "\n".join(found), number


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
    """Whether a line is the row of dashes below a table's head."""
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
    goes_on = False
    for part in bare.split("|"):
        escapes = part.endswith("\\")
        shown = f"{part[:-1]}|" if escapes else part
        if goes_on:
            cells[-1].append(shown)
        else:
            cells.append([shown])
        goes_on = escapes
    if goes_on:
        cells[-1][-1] = f"{cells[-1][-1][:-1]}\\"
    return ["".join(cell).strip() for cell in cells]
