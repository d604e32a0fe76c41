"""Rows of any database within limits, and their text for models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swe_ai_fleet.domain.tool import ToolResult

Value = str | int | float | bool | None
"""A parameter of a statement."""
MAX_ROWS = 5_000
MAX_CELL_CHARS = 1_000
MAX_RESULT_CHARS = 200_000

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBounds:
    """The limits of one statement: the rows that are kept, and its time limit in seconds."""

    read_only: bool = True
    max_rows: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The result of a statement: cells as text. `complete` is False if rows were left out; `summary` is its effect."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    complete: bool = True
    summary: str = ""
    facts: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The beginning of a long value, and its whole size in characters or bytes."""

    start: str | bytes
    size: int


class Collector:
    """Collects rows until a limit is reached; further ones are dropped.

    Args:
        columns: The names of the columns.
        max_rows: The most rows.
    """

    def __init__(self, columns: Sequence[str], max_rows: int) -> None:
        self._columns = tuple(cell(name) for name in columns)
        self._max_rows = max_rows
        self._rows: list[tuple[str, ...]] = []
        self._room = MAX_RESULT_CHARS
        self._full = False

    def add(self, row: Sequence[object]) -> bool:
        """Add a row; returns False, and marks the result as incomplete, if there is no room for it."""
        cells = tuple(cell(value) for value in row)
        size = sum(len(text) + 3 for text in cells)
        if self._full or len(self._rows) >= self._max_rows or size > self._room:
            self._full = True
            return False
        self._rows.append(cells)
        self._room -= size
        return True

    def rows(self, summary: str = "", facts: Mapping[str, object] | None = None) -> Rows:
        rows, complete = tuple(self._rows), not self._full
        return Rows(columns=self._columns, rows=rows, complete=complete, summary=summary, facts=facts or {})


def cell(value: object) -> str:
    """A value as one line of at most `MAX_CELL_CHARS` characters, with a note of how much was cut."""
    if value is None:
        return "NULL"
    whole = value.start if isinstance(value, Beginning) else value
    if isinstance(whole, bytes):
        raw = whole[: MAX_CELL_CHARS * 4]
        size = value.size if isinstance(value, Beginning) else len(whole)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            if error.start > len(raw) - 4 and len(raw) < size:  # the cut went through a character
                text = raw[: error.start].decode()
            else:
                text, size = "\\x" + raw.hex(), size * 2 + 2
    else:
        text = whole if isinstance(whole, str) else str(whole)
        size = value.size if isinstance(value, Beginning) else len(text)
    if size > MAX_CELL_CHARS and len(text) > MAX_CELL_CHARS:
        left_out = size - MAX_CELL_CHARS
        return f"{text[:MAX_CELL_CHARS].translate(_ESCAPES)}[... {left_out} more]"
    return text.translate(_ESCAPES)


def result(operation: str, rows: Rows) -> ToolResult:
    """A plain table: a header, one line a row, cells separated by ` | `, and below it the count and the summary."""
    lines = [" | ".join(row) for row in (rows.columns, *rows.rows) if row]
    if rows.columns:
        count = f"{len(rows.rows)} row{'' if len(rows.rows) == 1 else 's'}"
        more = "; there are more: narrow the query, or ask for fewer or shorter columns"
        lines.append(f"[{count}]" if rows.complete else f"[the first {count}{more}]")
    if rows.summary:
        lines.append(rows.summary)
    metadata: dict[str, object] = {
        "columns": list(rows.columns),
        "row_count": len(rows.rows),
        "truncated": not rows.complete,
        **rows.facts,
    }
    return ToolResult(
        success=True,
        operation=operation,
        content="\n".join(lines),
        metadata=metadata,
        truncated=not rows.complete,
    )
