"""How a part of a file is shown: numbered lines of bounded length."""

from __future__ import annotations

from collections.abc import Sequence

_LINE_CHARS = 2_000
_CONTEXT_LINES = 3
_REGION_LINES = 60
_REGIONS_SHOWN = 3


def numbered(lines: Sequence[str], first: int, last: int, *, room: int) -> tuple[str, int]:
    """Lines `first` to `last` (from 1, inclusive), as many as fit into `room` characters, and the last one shown.

    One line is always shown.
    """
    rows: list[str] = []
    for number in range(first, last + 1):
        row = _row(number, lines[number - 1])
        room -= len(row) + 1
        if room < 0 and rows:
            break
        rows.append(row)
    return "\n".join(rows), first + len(rows) - 1


def regions(lines: Sequence[str], changed: Sequence[tuple[int, int]]) -> str:
    """The changed regions, each (first, last) from 1, with some lines around them; the first few if there are many."""
    parts: list[str] = []
    for first, last in changed[:_REGIONS_SHOWN]:
        low, high = max(1, first - _CONTEXT_LINES), min(len(lines), last + _CONTEXT_LINES)
        if high - low >= _REGION_LINES:
            middle = f"  ... {high - low + 1 - 2 * (_REGION_LINES // 2)} lines ..."
            head = [_row(number, lines[number - 1]) for number in range(low, low + _REGION_LINES // 2)]
            tail = [_row(number, lines[number - 1]) for number in range(high + 1 - _REGION_LINES // 2, high + 1)]
            rows = [*head, middle, *tail]
        else:
            rows = [_row(number, lines[number - 1]) for number in range(low, high + 1)]
        parts.append("\n".join(rows) or "[the file is empty]")
    return "\n  ...\n".join(parts)


def _row(number: int, line: str) -> str:
    line = line.removesuffix("\r")
    if len(line) > _LINE_CHARS:
        line = f"{line[:_LINE_CHARS]} [... {len(line) - _LINE_CHARS} more characters in this line]"
    return f"{number:5}\t{line}"
