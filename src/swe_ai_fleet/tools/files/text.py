"""The text of a file: its bytes decoded and written back without changing what nobody asked to change.

A diff says all there is to say, line ends and a missing last one included; an excerpt has numbered lines of bounded
length; a syntax check says whether code or data still parses.
"""

from __future__ import annotations

import ast
import codecs
import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from swe_ai_fleet.domain.json_values import parsed
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import quoted

_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\b\t\n\f\r\x1b")
_MARKS = {
    "utf-8-sig": (codecs.BOM_UTF8, "utf-8"),
    "utf-16-le": (codecs.BOM_UTF16_LE, "utf-16-le"),
    "utf-16-be": (codecs.BOM_UTF16_BE, "utf-16-be"),
}
"""The byte order mark and the codec behind each encoding that is known by its mark."""

_MAGIC = (
    (b"\x89PNG", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF", "PDF document"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip archive"),
    (b"\x7fELF", "ELF program"),
    (b"SQLite format 3", "SQLite database"),
    (b"\xca\xfe\xba\xbe", "Java class"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Decoded content with `\\n` line ends where the file's are all alike, and how to write it back.

    `newline` is `\\n`, `\\r\\n` or `mixed`; mixed ones stand in `content` as they are.
    """

    content: str
    encoding: str = "utf-8"
    newline: str = "\n"

    @property
    def lines(self) -> list[str]:
        """The lines without their ends; a last line without an end counts, nothing after a last end does not."""
        lines = self.content.split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    @property
    def raw(self) -> str:
        """The content with the line ends that the file has."""
        return self.content.replace("\n", "\r\n") if self.newline == "\r\n" else self.content

    def with_content(self, content: str) -> Text:
        """Other content in the same encoding and with the same line ends."""
        return replace(self, content=content)

    def encode(self, path: str) -> bytes:
        """The bytes to write. Raises ToolFailure where the encoding lacks a character."""
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


def decode(path: str, data: bytes) -> Text:
    """A file's content as text: UTF-8, UTF-8 or UTF-16 with a byte order mark, else Latin-1. Raises ToolFailure."""
    encoding, content = _decode(data)
    if content is None:
        raise ToolFailure(f"{quoted(path)} is a binary file of {len(data)} bytes ({_kind(data)}), not text")
    windows = content.count("\r\n")
    if not windows:
        return Text(content=content, encoding=encoding)
    if windows == content.count("\n"):
        return Text(content=content.replace("\r\n", "\n"), encoding=encoding, newline="\r\n")
    return Text(content=content, encoding=encoding, newline="mixed")


def rewritten(old: Text | None, content: str, path: str) -> tuple[Text, bytes]:
    """New content for a file, as text and as bytes: in the encoding and line ends of the old where it can keep them.

    Content that has carriage returns of its own keeps them; content that the old encoding cannot hold becomes UTF-8.
    """
    if old is not None and "\r" not in content:
        text = old.with_content(content)
    else:
        text = Text(content=content, encoding=old.encoding if old else "utf-8")
    try:
        return text, text.encode(path)
    except ToolFailure:
        text = Text(content=content, newline=text.newline)
        return text, text.encode(path)


def _decode(data: bytes) -> tuple[str, str | None]:
    """(encoding, content), the content None for what is no text."""
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


def _kind(data: bytes) -> str:
    return next((name for start, name in _MAGIC if data.startswith(start)), f"it starts with {data[:8].hex(' ')}")


MAX_LINES = 20_000
"""Longer texts are not compared: difflib holds the interpreter's lock, and is slow on much that is alike."""

NO_NEWLINE = "\\ No newline at end of file\n"


def split_lines(text: str) -> list[str]:
    """The lines with their ends; only `\\n` ends a line, as in a patch."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop().removesuffix("\n")
    return [*lines, last] if last else lines


def unified_diff(before: str, after: str, *, source: str, target: str) -> str:
    """The diff from `before` to `after`, empty where they are the same. Raises ToolFailure above MAX_LINES lines."""
    old, new = split_lines(before), split_lines(after)
    if max(len(old), len(new)) > MAX_LINES:
        raise ToolFailure(f"texts of more than {MAX_LINES} lines are not compared; compare parts with a command")
    diff = difflib.unified_diff(old, new, f"a/{source}", f"b/{target}")
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in diff)


_LINE_CHARS = 2_000


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


def border(lines: Sequence[str], first: int, last: int) -> str:
    """The line before a changed passage and the one behind it, with the passage itself where it is a single line."""
    numbers = (first - 1, *((first,) if first == last else ()), last + 1)
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


_CLAUSES = ("else", "elif", "except", "finally", "case")


def syntax_error(path: str, content: str, *, changed: tuple[int, int] | None = None) -> str:
    """What is wrong with a Python, JSON or TOML file, in one line; empty if nothing is or nobody can say cheaply.

    `changed` are the first and last line (from 1) of the only passage that is new. In a Python file the statements
    around it are parsed then, and the whole file only if those do not parse: the whole costs 15 times as much.
    """
    suffix = PurePosixPath(path).suffix
    parse = _PARSERS.get(suffix)
    if parse is None or len(content) > MAX_CHARS:
        return ""
    if changed is not None and parse is ast.parse and not _problem(parse, _statements_around(content, *changed)):
        return ""
    return _problem(parse, content)


def _problem(parse: Callable[[str], object], content: str) -> str:
    try:
        parsed(parse, content)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except ValueError as error:
        return str(error)
    return ""


def _statements_around(content: str, first: int, last: int) -> str:
    """The lines from the beginning of one top-level statement to that of another, around those given."""
    lines = content.split("\n")
    start, end = min(first, len(lines)) - 1, last
    while start > 0 and not _begins_statement(lines[start]):
        start -= 1
    while end < len(lines) and not _begins_statement(lines[end]):
        end += 1
    return "\n".join(lines[start:end])


def _begins_statement(line: str) -> bool:
    return (line[:1].isidentifier() or line[:1] == "@") and not line.startswith(_CLAUSES)
