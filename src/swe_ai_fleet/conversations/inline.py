"""One line of Markdown as text with marks; linear in its length."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Mark(StrEnum):
    """Styles of a piece of text; code has no other style."""

    BOLD = "bold"
    ITALIC = "italic"
    STRIKE = "strike"
    CODE = "code"


_TICKS = re.compile(r"`+")
_TARGET = re.compile(
    r"\([ ]{0,3}<?([^\s()<>\\]{1,2000}(?:\([^\s()<>\\]{0,300}\)[^\s()<>\\]{0,300}){0,3})>?"
    r"(?: {1,3}\"[^\"\n]{0,200}\")?[ ]{0,3}\)"
)
_SCHEME = re.compile(r"(?:https?://|mailto:|tg://)\S", re.IGNORECASE)
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^\s<>]{1,2000})>", re.IGNORECASE)
_CODE = frozenset({Mark.CODE})
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_STOPS = re.compile(r"[\\`!\[\]<*_~]")
_DELIMITERS: dict[str, tuple[tuple[str, Mark], ...]] = {
    "*": (("*", Mark.ITALIC),),
    "_": (("_", Mark.ITALIC),),
    "**": (("**", Mark.BOLD),),
    "__": (("__", Mark.BOLD),),
    "***": (("**", Mark.BOLD), ("*", Mark.ITALIC)),
    "___": (("__", Mark.BOLD), ("_", Mark.ITALIC)),
    "~~": (("~~", Mark.STRIKE),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of a line with one style; `link` is its target."""

    text: str
    marks: frozenset[Mark] = frozenset()
    link: str = ""

    def marked(self, mark: Mark) -> Span:
        """The piece with one mark more; code stays code."""
        return self if Mark.CODE in self.marks else replace(self, marks=self.marks | {mark})


def read_line(line: str) -> tuple[Span, ...]:
    """The pieces of a line, none of them empty, adjacent pieces of one style merged."""
    return _Reader(line).read()


def text_of(spans: Sequence[Span]) -> str:
    return "".join(span.text for span in spans)


@dataclass(slots=True)
class _Open:
    """An unclosed mark; `piece` is its index."""

    delimiter: str
    mark: Mark
    piece: int


@dataclass(slots=True)
class _Reader:
    line: str
    pieces: list[str] = field(default_factory=list[str])
    code: set[int] = field(default_factory=set[int])
    begins: dict[int, list[Mark]] = field(default_factory=dict[int, list[Mark]])
    ends: dict[int, list[Mark]] = field(default_factory=dict[int, list[Mark]])
    links: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    opened: list[_Open] = field(default_factory=list[_Open])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    brackets: list[int] = field(default_factory=list[int])
    ticks: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def read(self) -> tuple[Span, ...]:
        for ticks in _TICKS.finditer(self.line):
            self.ticks.setdefault(len(ticks[0]), []).append(ticks.start())
        position = 0
        while position < len(self.line):
            stop = _STOPS.search(self.line, position)
            if stop is None:
                self.pieces.append(self.line[position:])
                break
            if stop.start() > position:
                self.pieces.append(self.line[position : stop.start()])
            position = self._special(stop.start())
        return self._spans()

    def _special(self, at: int) -> int:
        """Handle a special character; returns the next position."""
        character = self.line[at]
        match character:
            case "\\" if self.line[at + 1 : at + 2] in _PUNCTUATION:
                return self._literal(self.line[at + 1], at + 2)
            case "`":
                return self._code(at)
            case "[":
                self.brackets.append(len(self.pieces))
                return self._literal("[", at + 1)
            case "!" if self.line[at + 1 : at + 2] == "[":
                # An image becomes a link.
                self.brackets.append(len(self.pieces))
                return self._literal("![", at + 2)
            case "]":
                return self._bracket(at)
            case "<" if link := _AUTOLINK.match(self.line, at):
                self.links[len(self.pieces)] = (len(self.pieces) + 1, link[1])
                return self._literal(link[1], link.end())
            case "*" | "_" | "~":
                return self._delimiter(at)
            case _:
                return self._literal(character, at + 1)

    def _literal(self, text: str, position: int) -> int:
        self.pieces.append(text)
        return position

    def _code(self, at: int) -> int:
        run = _TICKS.match(self.line, at)
        length = len(run[0]) if run else 1
        places = self.ticks.get(length, [])
        after = bisect_left(places, at + length)
        if after == len(places):
            return self._literal("`" * length, at + length)
        inner = self.line[at + length : places[after]]
        if inner.strip() and inner[0] == inner[-1] == " ":
            inner = inner[1:-1]
        if inner:
            self.code.add(len(self.pieces))
            self.pieces.append(inner)
        return places[after] + length

    def _bracket(self, at: int) -> int:
        start = self.brackets.pop() if self.brackets else -1
        target = _TARGET.match(self.line, at + 1) if start >= 0 else None
        if target is None or not _SCHEME.match(target[1]) or not "".join(self.pieces[start + 1 :]).strip():
            return self._literal("]", at + 1)
        # Links do not contain links: brackets still open before this one are text.
        self.brackets.clear()
        while self.opened and self.opened[-1].piece > start:
            self.waiting[self.opened.pop().delimiter] -= 1
        self.pieces[start] = ""
        self.links[start] = (len(self.pieces), target[1])
        return target.end()

    def _delimiter(self, at: int) -> int:
        character, end = self.line[at], at
        while end < len(self.line) and self.line[end] == character:
            end += 1
        run = self.line[at:end]
        marks = _DELIMITERS.get(run)
        if marks is None:
            return self._literal(run, end)
        before, after = self.line[at - 1 : at] if at else "", self.line[end : end + 1]
        opens = bool(after) and not after.isspace()
        closes = bool(before) and not before.isspace()
        if character == "_" or run == "*":  # not in snake_case and 2*3*4
            opens = opens and not before.isalnum()
            closes = closes and not after.isalnum()
        remaining = list(marks)
        if closes:
            for name in [entry.delimiter for entry in reversed(self.opened[-2:])] + [name for name, _ in marks]:
                if any(name == mark[0] for mark in remaining) and self._close(name):
                    remaining = [mark for mark in remaining if mark[0] != name]
        for name, mark in remaining:
            if opens:
                self.opened.append(_Open(name, mark, len(self.pieces)))
                self.waiting[name] = self.waiting.get(name, 0) + 1
            self.pieces.append(name)
        return end

    def _close(self, delimiter: str) -> bool:
        """Close the nearest mark of this kind; unclosed marks inside it are text. False if there is none."""
        if not self.waiting.get(delimiter):
            return False
        while True:
            entry = self.opened.pop()
            self.waiting[entry.delimiter] -= 1
            if entry.delimiter == delimiter:
                break
        if entry.piece + 1 >= len(self.pieces):
            return False
        self.pieces[entry.piece] = ""
        self.begins.setdefault(entry.piece, []).append(entry.mark)
        self.ends.setdefault(len(self.pieces), []).append(entry.mark)
        return True

    def _spans(self) -> tuple[Span, ...]:
        spans: list[tuple[Span, list[str]]] = []
        depth: dict[Mark, int] = dict.fromkeys(Mark, 0)
        link, until = "", -1
        for number, text in enumerate(self.pieces):
            for mark in self.ends.get(number, ()):
                depth[mark] -= 1
            for mark in self.begins.get(number, ()):
                depth[mark] += 1
            if number == until:
                link = ""
            if number in self.links and not link:
                until, link = self.links[number]
            if not text:
                continue
            if number in self.code:
                spans.append((Span(text="", marks=_CODE), [text]))
                continue
            span = Span(text="", marks=frozenset(mark for mark in depth if depth[mark] > 0), link=link)
            if spans and spans[-1][0] == span:
                spans[-1][1].append(text)
            else:
                spans.append((span, [text]))
        return tuple(replace(span, text="".join(texts)) for span, texts in spans)
