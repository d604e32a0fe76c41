"""An answer as a channel takes it: plain text, Markdown, Telegram's MarkdownV2; in pages where one message has a limit.

Of Markdown, fenced and inline code, bold and headings are read; everything else is text and shown as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, cast

from swe_ai_fleet.tools.registry.plain_text import as_text, jsonable

TELEGRAM_UNITS = 4096
"""UTF-16 code units of one message."""
LEAST_UNITS = 128
_NOTE_UNITS = 64
_CELL_CHARS = 40
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "_*[]()~`>#+-=|{}.!\\"})
_CODE_SPECIAL = str.maketrans({character: f"\\{character}" for character in "`\\"})
_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+-]{1,20}")


class Channel(StrEnum):
    """Where an answer is read."""

    PLAIN = "plain"
    MARKDOWN = "markdown"
    TELEGRAM = "telegram"


_Style = Literal["text", "bold", "code", "block"]


@dataclass(frozen=True, slots=True)
class _Run:
    """Text of one style; `language` is a block's."""

    style: _Style
    text: str
    language: str = ""


def pages(text: str, channel: Channel, *, limit: int | None = None) -> tuple[str, ...]:
    """An answer in Markdown as the messages that a channel takes; each stands for itself, its marks are balanced.

    Cuts fall on line ends or blanks where they can. No page is blank; of a blank answer there is none.

    Args:
        text: The answer.
        channel: Who reads it.
        limit: The longest page in UTF-16 code units, at least 128; None: 4096 for Telegram, otherwise no limit.
    """
    longest = limit if limit is not None else TELEGRAM_UNITS if channel is Channel.TELEGRAM else None
    if longest is not None and longest < LEAST_UNITS:
        raise ValueError(f"a page has at least {LEAST_UNITS} UTF-16 code units")
    if channel is Channel.MARKDOWN and (longest is None or units(text) <= longest):
        return (text,) if text.strip() else ()
    runs = list(_merged(_runs(text, inline=channel is not Channel.MARKDOWN)))
    if longest is None:
        longest = 2 * sum(len(run.text) for run in runs) + LEAST_UNITS
    return tuple(_paged(runs, channel, longest))


def shortened(text: str, channel: Channel, *, limit: int | None = None) -> str:
    """An answer as one message, cut where it is too long, with a note of how much is missing."""
    longest = limit or TELEGRAM_UNITS
    whole = pages(text, channel, limit=limit)
    if len(whole) <= 1 and (not whole or units(whole[0]) <= longest):
        return whole[0] if whole else ""
    first = pages(text, channel, limit=longest - _NOTE_UNITS)[0]
    more = max(1, len(text) - len(first))
    note = f"[about {more} more characters]"
    return f"{first}\n\n{escaped(note) if channel is Channel.TELEGRAM else note}"


def escaped(text: str) -> str:
    """Text that Telegram's MarkdownV2 shows as it is."""
    return text.translate(_SPECIAL)


def units(text: str) -> int:
    """The length in UTF-16 code units."""
    return len(text) + sum(character > "\uffff" for character in text)


def with_data(text: str, data: object) -> str:
    """An answer with its data below, in Markdown: records as a table in a block, anything else as a list."""
    plain = jsonable(data)
    if plain in (None, "", [], {}):
        return text
    records = _records(plain)
    shown = _table(records) if records else as_text(plain)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{text.rstrip()}\n\n{fence}\n{shown}\n{fence}".lstrip()


def _runs(text: str, *, inline: bool) -> Iterator[_Run]:
    """The answer in runs of one style each; line ends belong to the text before them."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if fence := _FENCE.fullmatch(line.rstrip()):
            block: list[str] = []
            while number < len(lines) and not _closes(lines[number], fence[1]):
                block.append(lines[number])
                number += 1
            number += 1
            named = _LANGUAGE.fullmatch(fence[2].strip())
            yield _Run("block", "\n".join(block), named[0] if named else "")
            yield _Run("text", "\n" if number < len(lines) else "")
            continue
        heading = _HEADING.fullmatch(line) if inline else None
        if heading:
            yield _Run("bold", heading[1].rstrip(" #") or heading[1])
        elif inline:
            yield from _inline(line)
        else:
            yield _Run("text", line)
        yield _Run("text", "\n" if number < len(lines) else "")


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip("`") and line.startswith((" ", "`"))


def _inline(line: str) -> Iterator[_Run]:
    """Code and bold of one line. Marks that are not closed are text."""
    start = position = 0
    dead: set[str] = set()
    while position < len(line):
        mark = next((mark for mark in ("**", "`") if line.startswith(mark, position) and mark not in dead), "")
        end = line.find(mark, position + len(mark)) if mark else -1
        inner = line[position + len(mark) : end] if end >= 0 else ""
        if mark and end < 0:
            dead.add(mark)
        if not inner.strip() or (mark == "**" and inner != inner.strip()):
            position += max(1, len(mark))
            continue
        yield _Run("text", line[start:position])
        yield _Run("bold" if mark == "**" else "code", inner)
        start = position = end + len(mark)
    yield _Run("text", line[start:])


def _merged(runs: Iterator[_Run]) -> Iterator[_Run]:
    """Runs without empty ones, neighbours of one style as one; blocks stay apart."""
    waiting: _Run | None = None
    for run in runs:
        if not run.text:
            continue
        if waiting is not None and waiting.style == run.style != "block":
            waiting = _Run(run.style, waiting.text + run.text)
            continue
        if waiting is not None:
            yield waiting
        waiting = run
    if waiting is not None:
        yield waiting


def _paged(runs: Sequence[_Run], channel: Channel, limit: int) -> Iterator[str]:
    page: list[str] = []
    used, blank = 0, True
    for run in runs:
        before, after = _marks(run, channel)
        frame = units(before) + units(after)
        if frame > limit // 2:  # marks longer than what they mark: a fence around a text full of fences
            before, after, frame = "", "", 0
        start = 0
        while start < len(run.text):
            end = _end(run, channel, start, limit - used - frame, fresh=not used)
            if end > start:
                written = before + _written(run.text[start:end], run.style, channel) + after
                page.append(written)
                used += units(written)
                blank = blank and not run.text[start:end].strip()
                start = end
            if start < len(run.text):
                if not blank:
                    yield "".join(page)
                page, used, blank = [], 0, True
    if not blank:
        yield "".join(page)


def _end(run: _Run, channel: Channel, start: int, room: int, *, fresh: bool) -> int:
    """Where the part of a run that begins at `start` and fits into `room` ends: at its end, a line's, a word's."""
    end = start
    while end < len(run.text):
        room -= units(_written(run.text[end], run.style, channel))
        if room < 0:
            break
        end += 1
    if end == len(run.text):
        return end
    line = run.text.rfind("\n", start + (end - start) // 2, end)
    word = line if line >= 0 else run.text.rfind(" ", start, end)
    if word >= 0:
        return word + 1
    # A word that is too long for what is left of this page may fit on the next one.
    return end if fresh else start


def _marks(run: _Run, channel: Channel) -> tuple[str, str]:
    if channel is Channel.PLAIN or run.style == "text":
        return "", ""
    if run.style == "block":
        longest = max((len(found) for found in re.findall("`+", run.text)), default=0)
        fence = "```" if channel is Channel.TELEGRAM else "`" * max(3, longest + 1)
        return f"{fence}{run.language}\n", f"\n{fence}"
    mark = "*" if run.style == "bold" else "`"
    return mark, mark


def _written(text: str, style: _Style, channel: Channel) -> str:
    if channel is not Channel.TELEGRAM:
        return text
    return text.translate(_CODE_SPECIAL if style in ("code", "block") else _SPECIAL)


def _records(value: object) -> list[Mapping[str, object]]:
    """The value as flat records, if that is what it is."""
    if not isinstance(value, list):
        return []
    found = [cast("Mapping[str, object]", part) for part in cast("list[object]", value) if isinstance(part, dict)]
    flat = all(not isinstance(cell, list | dict) for record in found for cell in record.values())
    return found if flat and len(found) == len(cast("list[object]", value)) else []


def _table(records: Sequence[Mapping[str, object]]) -> str:
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [names, *([_cell(record.get(name)) for name in names] for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _cell(value: object) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= _CELL_CHARS else f"{text[: _CELL_CHARS - 1]}…"
