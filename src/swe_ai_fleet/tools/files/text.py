"""The text of a file: decoding and encoding, diffs, numbered lines, and the replacement of a passage.

A passage is replaced if it occurs exactly once; otherwise the error shows the most similar passages.
"""

from __future__ import annotations

import ast
import codecs
import difflib
import json
import re
import tomllib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import islice, zip_longest
from pathlib import PurePosixPath

from swe_ai_fleet.domain.json_values import parsed
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import quoted

_WORDS = re.compile(r"\w{2,}")
_WORDS_TRIED = 12
_HITS_A_WORD = 200
_WINDOWS_COMPARED = 10
_LINES_COMPARED = 30
_CHARS_COMPARED = 160
_MISSES_SHOWN = 3
_PLACES_SHOWN = 10
_LIKENESS = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A text after `count` replacements. `changed` are (first, last) line numbers, from 1, of the first new passages.

    `tolerant` says that the passage was found only by ignoring white space at line ends.
    """

    text: str
    count: int
    changed: tuple[tuple[int, int], ...]
    tolerant: bool = False


def replace_passage(text: str, old: str, new: str, *, replace_all: bool = False) -> Replacement:
    """The text with `old` replaced by `new`.

    `old` must occur exactly once (with `replace_all`: at least once). If it does not occur, the only passage of whole
    lines that differs from it just in white space at line ends is replaced, if there is one.

    Raises:
        ToolFailure: `old` occurs more than once or not at all; the message names lines or shows similar passages.
    """
    if not old:
        raise ToolFailure(
            "old is empty, which only creates a file; to add text give the line before it as old and both as new, "
            "files_write_file replaces a file whole"
        )
    if old == new:
        raise ToolFailure("old and new are the same: nothing would change")
    count = text.count(old)
    if count > 1 and not replace_all:
        places = [text.count("\n", 0, start) + 1 for start in _occurrences(text, old)]
        raise ToolFailure(_ambiguous(places, count))
    if not count:
        return _replace_tolerantly(text, old, new)
    changed: list[tuple[int, int]] = []
    line, position = 1, 0
    for start in _occurrences(text, old):
        line += text.count("\n", position, start)
        changed.append((line, line + new.removesuffix("\n").count("\n")))
        line += new.count("\n")
        position = start + len(old)
    return Replacement(text=text.replace(old, new), count=count, changed=tuple(changed))


def near_misses(text: str, old: str) -> list[tuple[int, list[str]]]:
    """The passages of the text most like `old`, best first: the number of the first line, from 1, and the lines.

    The work is bounded for any input. Each occurrence of one of `old`'s rare words votes for the line where `old` would
    begin. Only the lines with the most votes are compared (Ratcliff and Obershelp's similarity of a bounded part).
    """
    lines, passage = text.split("\n"), old.strip("\n").split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    votes: Counter[int] = Counter()
    for word, offset in _rare_words(text, passage):
        position = text.find(word)
        for _ in range(_HITS_A_WORD):
            if position < 0:
                break
            number = bisect_right(starts, position) - 1
            votes[max(0, number - offset)] += 1
            position = text.find(word, starts[number + 1])
    windows = [(number, lines[number : number + len(passage)]) for number, _ in votes.most_common(_WINDOWS_COMPARED)]
    best: list[tuple[int, list[str]]] = []
    for likeness, number, window in sorted((-_likeness(window, passage), number, window) for number, window in windows):
        apart = all(abs(number + 1 - first) >= len(passage) for first, _ in best)
        if apart and -likeness >= _LIKENESS and len(best) < _MISSES_SHOWN:
            best.append((number + 1, window))
    return best


def _occurrences(text: str, old: str) -> list[int]:
    """The positions of the first few occurrences."""
    starts: list[int] = []
    position = text.find(old)
    while position >= 0 and len(starts) < _PLACES_SHOWN:
        starts.append(position)
        position = text.find(old, position + len(old))
    return starts


def _replace_tolerantly(text: str, old: str, new: str) -> Replacement:
    passage = [line.rstrip() for line in old.removesuffix("\n").split("\n")]
    lines = text.split("\n")
    runs = _runs([line.rstrip() for line in lines], passage) if any(passage) else []
    if len(runs) > 1:
        places = [number + 1 for number in runs[:_PLACES_SHOWN]]
        raise ToolFailure("apart from white space at line ends, " + _ambiguous(places, len(runs)))
    if not runs:
        raise ToolFailure(_not_found(text, old))
    first, last = runs[0], runs[0] + len(passage) - 1
    start = sum(len(line) + 1 for line in lines[:first])
    end = start + sum(len(line) + 1 for line in lines[first : last + 1]) - 1
    windows = lines[last].endswith("\r")
    if old.endswith("\n") and end < len(text):
        end += 1
    elif windows:
        end -= 1
    fresh = new.replace("\r\n", "\n").replace("\n", "\r\n") if windows else new
    changed = (first + 1, first + 1 + new.removesuffix("\n").count("\n"))
    return Replacement(text=text[:start] + fresh + text[end:], count=1, changed=(changed,), tolerant=True)


def _runs(lines: list[str], passage: list[str]) -> list[int]:
    """The positions of the passage's lines in a text's. The longest line is searched first, as the rarest one."""
    offset = max(range(len(passage)), key=lambda number: len(passage[number]))
    starts: list[int] = []
    position = -1
    while True:
        try:
            position = lines.index(passage[offset], position + 1)
        except ValueError:
            return starts
        first = position - offset
        if first >= 0 and lines[first : first + len(passage)] == passage:
            starts.append(first)


def _rare_words(text: str, passage: list[str]) -> list[tuple[str, int]]:
    """Words of the passage with the offset of their line, the rarest in the text first."""
    offsets: dict[str, int] = {}
    for offset, line in enumerate(passage[:_LINES_COMPARED]):
        for word in _WORDS.findall(line[:_CHARS_COMPARED]):
            offsets.setdefault(word, offset)
    longest = sorted(offsets, key=len, reverse=True)[: 2 * _WORDS_TRIED]
    counts = {word: text.count(word) for word in longest}
    present = sorted((word for word in longest if counts[word]), key=lambda word: counts[word])
    return [(word, offsets[word]) for word in present[:_WORDS_TRIED]]


def _likeness(window: list[str], passage: list[str]) -> float:
    shared = total = 0.0
    for lines in islice(zip_longest(window, passage, fillvalue=""), _LINES_COMPARED):
        ours, theirs = (line.strip()[:_CHARS_COMPARED] for line in lines)
        weight = max(len(ours), len(theirs))
        total += weight
        shared += weight * SequenceMatcher(None, ours, theirs, autojunk=False).ratio()
    return shared / total if total else 0.0


def _ambiguous(numbers: list[int], count: int) -> str:
    places = ", ".join(str(number) for number in numbers) + (", ..." if count > len(numbers) else "")
    return (
        f"old occurs {count} times, at lines {places}; "
        "add lines before or after it until it is unique, or set replace_all=true"
    )


def _not_found(text: str, old: str) -> str:
    misses = near_misses(text, old)
    if not misses:
        return "old does not occur in the file and nothing in it comes near; read the file and copy the passage exactly"
    passage = old.strip("\n").split("\n")
    parts = ["old does not occur in the file. What comes near:"]
    for first, lines in misses:
        parts.append(f"lines {first}-{first + len(lines) - 1}:")
        parts.extend(f"{number}\t{line[:200]}" for number, line in enumerate(lines[:12], start=first))
        parts.append(f"  ({_difference(first, lines, passage)})")
    parts.append("Copy the passage exactly, without the line numbers.")
    return "\n".join(parts)


def _difference(first: int, lines: list[str], passage: list[str]) -> str:
    for number, (ours, theirs) in enumerate(zip(lines, passage, strict=False), start=first):
        if ours != theirs:
            if ours.strip() == theirs.strip():
                return f"line {number} differs in white space: the file has {ours[:200]!r}"
            return f"first difference in line {number}: old has {theirs[:200]!r}"
    return "only a part of it is there"


_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\b\t\n\f\r\x1b")
_MARKS = {
    "utf-8-sig": (codecs.BOM_UTF8, "utf-8"),
    "utf-16-le": (codecs.BOM_UTF16_LE, "utf-16-le"),
    "utf-16-be": (codecs.BOM_UTF16_BE, "utf-16-be"),
}
"""The byte order mark and the codec of each encoding that is recognised by its mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedText:
    """Decoded content, and the encoding and line ends with which to write it back.

    `newline` is `\\n`, `\\r\\n` or `mixed`. `content` has `\\n` line ends, or the file's own if they are mixed.
    """

    content: str
    encoding: str = "utf-8"
    newline: str = "\n"

    @property
    def lines(self) -> list[str]:
        """The lines without their line ends, as `splitlines` counts them."""
        lines = self.content.split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    @property
    def raw(self) -> str:
        """The content with the file's line ends."""
        return self.content.replace("\n", "\r\n") if self.newline == "\r\n" else self.content

    def with_content(self, content: str) -> DecodedText:
        """Other content in the same encoding and with the same line ends."""
        return replace(self, content=content)

    def encode(self, path: str) -> bytes:
        """The bytes to write. Raises ToolFailure if the encoding lacks a character."""
        content = self.content
        if self.newline == "\r\n":
            content = content.replace("\r\n", "\n").replace("\n", "\r\n")
        mark, codec = _MARKS.get(self.encoding, (b"", self.encoding))
        try:
            return mark + content.encode(codec)
        except UnicodeEncodeError as error:
            raise ToolFailure(
                f"{quoted(path)} is encoded in {self.encoding}, which cannot hold {content[error.start]!r}; "
                "leave that character out"
            ) from None


def decode(path: str, data: bytes) -> DecodedText:
    """A file's content as text: UTF-8, UTF-8 or UTF-16 with a byte order mark, else Latin-1. Raises ToolFailure."""
    encoding, content = _decode(data)
    if content is None:
        raise ToolFailure(
            f"{quoted(path)} is a binary file of {len(data)} bytes, not text: it starts with {data[:8].hex(' ')}"
        )
    windows = content.count("\r\n")
    if not windows:
        return DecodedText(content=content, encoding=encoding)
    if windows == content.count("\n"):
        return DecodedText(content=content.replace("\r\n", "\n"), encoding=encoding, newline="\r\n")
    return DecodedText(content=content, encoding=encoding, newline="mixed")


def rewritten(old: DecodedText | None, content: str, path: str) -> tuple[DecodedText, bytes]:
    """New content for a file, as text and as bytes, in the encoding and with the line ends of the old if possible.

    Carriage returns in the content are kept; content that the old encoding cannot represent becomes UTF-8.
    """
    if old is not None and "\r" not in content:
        text = old.with_content(content)
    else:
        text = DecodedText(content=content, encoding=old.encoding if old else "utf-8")
    try:
        return text, text.encode(path)
    except ToolFailure:
        text = DecodedText(content=content, newline=text.newline)
        return text, text.encode(path)


def _decode(data: bytes) -> tuple[str, str | None]:
    """(encoding, content); the content is None for binary data."""
    for encoding, (mark, codec) in _MARKS.items():
        if data.startswith(mark):
            try:
                content = data[len(mark) :].decode(codec)
            except UnicodeDecodeError:
                return encoding, None
            return encoding, None if "\0" in content else content
    if b"\0" in data:
        return "binary", None
    try:
        return "utf-8", data.decode()
    except UnicodeDecodeError:
        is_text = len(data.translate(None, _CONTROLS)) == len(data)
        return "latin-1", data.decode("latin-1") if is_text else None


MAX_LINES = 20_000
"""Longer texts are not compared: difflib holds the interpreter's lock and is slow on repetitive text."""

NO_NEWLINE = "\\ No newline at end of file\n"


def split_lines(text: str) -> list[str]:
    """The lines with their ends; only `\\n` ends a line, as in a patch."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop().removesuffix("\n")
    return [*lines, last] if last else lines


def unified_diff(before: str, after: str, *, source: str, target: str) -> str:
    """The diff from `before` to `after`, empty if they are the same. Raises ToolFailure above MAX_LINES lines."""
    old, new = split_lines(before), split_lines(after)
    if max(len(old), len(new)) > MAX_LINES:
        raise ToolFailure(f"texts of more than {MAX_LINES} lines are not compared; compare parts with a command")
    diff = difflib.unified_diff(old, new, f"a/{source}", f"b/{target}")
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in diff)


_LINE_CHARS = 2_000


def numbered(lines: Sequence[str], first: int, last: int, *, room: int) -> tuple[str, int]:
    """Lines `first` to `last` (from 1, inclusive), as many as fit into `room` characters but at least one.

    Returns the rows and the number of the last line shown.
    """
    rows: list[str] = []
    for number in range(first, last + 1):
        row = _row(number, lines[number - 1])
        room -= len(row) + 1
        if room < 0 and rows:
            break
        rows.append(row)
    return "\n".join(rows), first + len(rows) - 1


def border(lines: Sequence[str], first: int, last: int) -> str:
    """The lines before and after a changed passage, and the passage itself if it is a single line."""
    numbers = (first - 1, first, last + 1) if first == last else (first - 1, last + 1)
    return "\n".join(_row(number, lines[number - 1]) for number in numbers if 0 < number <= len(lines))


def _row(number: int, line: str) -> str:
    line = line.removesuffix("\r")
    if len(line) > _LINE_CHARS:
        line = f"{line[:_LINE_CHARS]} [... {len(line) - _LINE_CHARS} more characters in this line]"
    return f"{number}\t{line}"


MAX_CHARS = 256 * 1024
"""Longer files are not checked: parsing holds the interpreter's lock, 256 KiB about 40 ms."""

_PARSERS: Mapping[str, Callable[[str], object]] = {
    ".py": ast.parse,
    ".pyi": ast.parse,
    ".json": json.loads,
    ".toml": tomllib.loads,
}


def syntax_error(path: str, content: str) -> str:
    """The syntax error of a Python, JSON or TOML file in one line; empty if it has none, or for other or long files."""
    parse = _PARSERS.get(PurePosixPath(path).suffix)
    if parse is None or len(content) > MAX_CHARS:
        return ""
    try:
        parsed(parse, content)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except ValueError as error:
        return str(error)
    return ""
