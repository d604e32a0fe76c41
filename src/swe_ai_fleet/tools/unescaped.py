"""Text with its escapes undone, and the positions of its characters in the original."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator

_PERCENT = r"(?:%[0-9A-Fa-f]{2})+"
_BACKSLASH = (
    r"\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}"
    r"|\\[0-3][0-7]{2}|\\[^A-Za-z0-9]|\\[bfnrt]"
)
_AMPERSAND = r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});"
_KINDS = {"%": re.compile(_PERCENT), "\\": re.compile(_BACKSLASH), "&": re.compile(_AMPERSAND)}
_ANY = re.compile(f"{_PERCENT}|{_BACKSLASH}|{_AMPERSAND}")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LINE_ENDS = re.compile(r"[\r\n]+[ \t]{0,32}")
_MAX_DEPTH = 3
_LAST_CHARACTER = 0x10FFFF


class DerivedText:
    """A text that was made from another one by removing or replacing pieces.

    Args:
        text: The derived text.
        parent: The text it was made from; None for an original.
        pattern: Finds the replaced pieces in the parent: escapes, or line ends, which were removed.
    """

    def __init__(self, text: str, parent: DerivedText | None = None, pattern: re.Pattern[str] = _ANY) -> None:
        self.text = text
        self._parent = parent
        self._pattern = pattern
        self._pieces: tuple[list[int], list[tuple[int, int]]] | None = None

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """The span, in the original, of the characters from `start` to before `end`."""
        if self._parent is None or start >= end:
            return start, end
        return self._parent.origin(self._source(start)[0], self._source(end - 1)[1])

    def without_line_ends(self) -> DerivedText:
        """The text without line ends and the indentation after them, since encoders break long lines."""
        if "\n" not in self.text and "\r" not in self.text:
            return self
        return DerivedText(_LINE_ENDS.sub("", self.text), self, _LINE_ENDS)

    def _source(self, position: int) -> tuple[int, int]:
        # Made on demand: most texts hold no secret whose position is needed.
        starts, sources = self._pieces = self._pieces or self._mapped()
        number = bisect_right(starts, position) - 1
        begin, width = sources[number]
        if width:
            return begin, begin + width
        begin += position - starts[number]
        return begin, begin + 1

    def _mapped(self) -> tuple[list[int], list[tuple[int, int]]]:
        assert self._parent is not None
        starts, sources = [0], [(0, 0)]
        position = source = 0
        for match in self._pattern.finditer(self._parent.text):
            position += match.start() - source
            source = match.end()
            if self._pattern is not _LINE_ENDS:
                for width, begin in _widths(match):
                    starts.append(position)
                    sources.append((begin, width))
                    position += 1
            starts.append(position)
            sources.append((source, 0))
        return starts, sources


def views(text: str) -> Iterator[DerivedText]:
    """The text, then the text with one, two and three layers of escapes undone.

    Known are percent-encoding, the escapes of JSON, Python, shells and git (quoted file names), and those of XML and
    HTML. If a text holds several kinds, each kind is also undone alone: in `\\00%41` the backslash may be no escape.
    """
    original = DerivedText(text)
    yield original
    kinds = [pattern for mark, pattern in _KINDS.items() if mark in text]
    for pattern in kinds if len(kinds) == 1 else (_ANY, *kinds):
        view = original
        for _ in range(_MAX_DEPTH if kinds else 0):
            plain = pattern.sub(_read, view.text)
            if plain == view.text:
                break
            view = DerivedText(plain, view, pattern)
            yield view


def unescaped(text: str) -> str:
    return _ANY.sub(_read, text)


def _read(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == "%":
        return os.fsdecode(bytes.fromhex(token.replace("%", "")))
    if token[0] == "&":
        name = token[1:-1]
        if name[0] != "#":
            return _NAMED[name]
        return chr(min(int(name[2:], 16) if name[1] in "xX" else int(name[1:]), _LAST_CHARACTER))
    kind = token[1]
    if kind == "u" and len(token) == 12:
        return (bytes.fromhex(token[2:6]) + bytes.fromhex(token[8:])).decode("utf-16-be")
    if kind in "ux":
        return chr(int(token[2:], 16))
    return chr(int(token[1:], 8)) if kind in "0123" else _LETTERS.get(kind, kind)


def _widths(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """For each character of an escape: the length of its source, and where that begins."""
    if match[0][0] != "%":
        yield len(match[0]), match.start()
        return
    begin = match.start()
    for character in _read(match):
        width = 3 * len(os.fsencode(character))
        yield width, begin
        begin += width
