"""An answer as the messages of a channel.

The format of a channel is the model's Markdown, with tables in pipes; plain text without markup; or its own dialect.
Each page is complete: all markup is closed on it, and code that continues is closed and reopened. Pages are cut at line
ends, else at blanks, else between characters; never within an escape, an entity or a character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from swe_ai_fleet.conversations.document import (
    PLAIN_WIDTH,
    TELEGRAM_WIDTH,
    Block,
    LineKind,
    Part,
    StyledLine,
    Table,
    aligned,
    piped,
    read,
)
from swe_ai_fleet.conversations.inline import Mark, Span, read_line
from swe_ai_fleet.domain.text import well_formed

_TEXT = str.maketrans({character: f"\\{character}" for character in "_*[]()~`>#+-=|{}.!\\"})
_CODE = str.maketrans({character: f"\\{character}" for character in "`\\"})
_TARGET = str.maketrans({character: f"\\{character}" for character in ")\\"})
_SIGNS = {Mark.BOLD: "*", Mark.ITALIC: "_", Mark.STRIKE: "~", Mark.CODE: "`"}
# Links enclose everything else, so two equal signs are never adjacent, which would have another meaning.
_ORDER = (Mark.BOLD, Mark.ITALIC, Mark.STRIKE)


def escaped(text: str) -> str:
    """The text, escaped so that MarkdownV2 shows it as it is."""
    return text.translate(_TEXT)


class MarkdownV2:
    """Writes lines and code for Telegram, by the Bot API's section "MarkdownV2 style".

    Outside of entities eighteen characters and the backslash are escaped, in code the backtick and the backslash, in
    the target of a link the closing parenthesis and the backslash. Code is neither inside nor around other entities.
    """

    width = TELEGRAM_WIDTH

    def line(self, spans: Sequence[Span], kind: LineKind) -> str:
        """One line; all markup opened on it is closed on it."""
        written: list[str] = [">"] if kind is LineKind.QUOTE else []
        opened: list[tuple[Mark | None, str]] = []
        for span in spans:
            entities = _entities_of(span, kind)
            same = 0
            while same < min(len(opened), len(entities)) and opened[same] == entities[same]:
                same += 1
            while len(opened) > same:
                written.append(_closing(*opened.pop()))
            for entry in entities[same:]:
                opened.append(entry)
                written.append("[" if entry[0] is None else _SIGNS[entry[0]])
            inside_code = bool(opened) and opened[-1][0] is Mark.CODE
            written.append(span.text.translate(_CODE if inside_code else _TEXT))
        written += [_closing(*entry) for entry in reversed(opened)]
        return "".join(written)

    def fence(self, language: str) -> tuple[str, str]:
        return f"```{language.translate(_CODE)}\n", "\n```"

    def code(self, text: str) -> str:
        return text.translate(_CODE)


def _entities_of(span: Span, kind: LineKind) -> list[tuple[Mark | None, str]]:
    """The entities around a span, the outermost first; a link has a target instead of a mark."""
    if Mark.CODE in span.marks:
        return [] if kind is LineKind.QUOTE else [(Mark.CODE, "")]
    link: list[tuple[Mark | None, str]] = [(None, span.link)] if span.link else []
    return [*link, *((mark, "") for mark in _ORDER if mark in span.marks)]


def _closing(mark: Mark | None, target: str) -> str:
    return f"]({target.translate(_TARGET)})" if mark is None else _SIGNS[mark]


def unmarked(page: str) -> str:
    """The text of a MarkdownV2 page without markup, for clients that cannot read it."""
    text: list[str] = []
    position, code, line_start = 0, "", True
    while position < len(page):
        character = page[position]
        if character == "\\" and position + 1 < len(page):
            text.append(page[position + 1])
            position += 2
        elif page.startswith("```", position) and code != "`":
            end = page.find("\n", position) + 1 if not code else position + 3
            position, code = end or len(page), "" if code else "```"
        elif character == "`" and not code.startswith("```"):
            position, code = position + 1, "" if code else "`"
        elif code:
            text.append(character)
            position += 1
        elif character == "]" and page.startswith("](", position):
            end = _target_end(page, position + 2)
            target = page[position + 2 : end].replace("\\)", ")").replace("\\\\", "\\")
            text.append(f" ({target})")
            position = end + 1
        else:
            if character not in "*_~[" and not (character == ">" and line_start):
                text.append(character)
            position += 1
        line_start = position > 0 and page[position - 1 : position] == "\n"
    return "".join(text)


def _target_end(page: str, start: int) -> int:
    position = start
    while position < len(page) and page[position] != ")":
        position += 2 if page[position] == "\\" else 1
    return position


_ESCAPED = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~#"})
TELEGRAM_UNITS = 4096
"""The longest message, in UTF-16 code units."""
LEAST_UNITS = 128
_WORDS = re.compile(r"\S+\s*|\s+")


class Channel(StrEnum):
    """The medium of an answer: a terminal, a Markdown viewer, a Telegram chat."""

    PLAIN = "plain"
    MARKDOWN = "markdown"
    TELEGRAM = "telegram"


def markdown(text: str, tables: Sequence[Table] = ()) -> str:
    """The answer, followed by its tables."""
    parts = [text.strip()] if text.strip() else []
    parts += ["\n\n".join(part for part in (titled(table.title), piped(table)) if part) for table in tables]
    return "\n\n".join(parts)


def titled(title: str) -> str:
    """The title of a table in bold; empty for none."""
    line = " ".join(title.split())
    return f"**{line.translate(_ESCAPED)}**" if line else ""


class PlainText:
    """Writes lines and code without markup."""

    width = PLAIN_WIDTH

    def line(self, spans: Sequence[Span], kind: LineKind) -> str:
        """One line; a link is followed by its target."""
        text = "".join(_plain_text(spans, number) for number in range(len(spans)))
        return f"> {text}" if kind is LineKind.QUOTE else text

    def fence(self, language: str) -> tuple[str, str]:
        return "", ""

    def code(self, text: str) -> str:
        return text


def _plain_text(spans: Sequence[Span], number: int) -> str:
    span = spans[number]
    ends = number + 1 == len(spans) or spans[number + 1].link != span.link
    address = span.link.removeprefix("mailto:")
    return f"{span.text} ({address})" if span.link and ends and span.text not in (address, span.link) else span.text


Dialect = PlainText | MarkdownV2
"""The markup of a channel; `width` is the widest table."""


def units(text: str) -> int:
    """The length in UTF-16 code units, as Telegram counts."""
    return len(text) + sum(character > "\uffff" for character in text)


def rendered(text: str, channel: Channel, tables: Sequence[Table] = ()) -> str:
    """An answer in one piece, however long."""
    return "\n".join(pages(text, channel, tables, limit=0))


def pages(text: str, channel: Channel, tables: Sequence[Table] = (), *, limit: int | None = None) -> tuple[str, ...]:
    """An answer in Markdown as the messages of a channel; none is blank, and a blank answer has none.

    Args:
        limit: The longest page in UTF-16 code units, at least 128; 0: one page, however long; None: 4096 for Telegram,
            one page elsewhere. Markdown is one page in any case.

    Raises:
        ValueError: A limit below 128.
    """
    longest = limit if limit is not None else TELEGRAM_UNITS if channel is Channel.TELEGRAM else 0
    if longest and longest < LEAST_UNITS:
        raise ValueError(f"a page has at least {LEAST_UNITS} UTF-16 code units")
    text = well_formed(text).replace("\0", "\ufffd")
    if channel is Channel.MARKDOWN:
        whole = markdown(text, tables)
        return (whole,) if whole else ()
    dialect = MarkdownV2() if channel is Channel.TELEGRAM else PlainText()
    parts = list(read(text))
    for table in tables:
        parts += [StyledLine(), *([StyledLine(spans=read_line(titled(table.title)))] if table.title else []), table]
    pagination = _Pagination(dialect, longest or 10**12)
    for part in parts:
        pagination.add(part)
    return pagination.finished()


class _Pagination:
    """Fills pages with the parts of an answer."""

    def __init__(self, dialect: Dialect, limit: int) -> None:
        self._dialect = dialect
        self._limit = limit
        self._pages: list[str] = []
        self._page: list[str] = []
        self._used = 0
        self._blank = True

    def add(self, part: Part) -> None:
        match part:
            case StyledLine():
                self._line(part)
            case Block():
                self._block(part)
            case Table():
                self._block(Block(text=aligned(part, width=self._dialect.width)))

    def finished(self) -> tuple[str, ...]:
        self._new_page()
        return tuple(self._pages)

    @property
    def _room(self) -> int:
        """The room left on the page, without the line end before the next line."""
        return self._limit - self._used - (1 if self._page else 0)

    def _new_page(self) -> None:
        """Start a new page; a blank page is dropped."""
        while self._page and not self._page[-1].strip():
            self._page.pop()
        if self._page and not self._blank:
            self._pages.append("\n".join(self._page))
        self._page, self._used, self._blank = [], 0, True

    def _put(self, written: str, size: int, *, blank: bool = False) -> None:
        self._used += size + (1 if self._page else 0)
        self._page.append(written)
        self._blank = self._blank and blank

    def _line(self, line: StyledLine) -> None:
        blank = not any(span.text.strip() for span in line.spans)
        if blank and not self._page:
            return
        written = "" if blank else self._dialect.line(line.spans, line.kind)
        size = units(written)
        if size > self._room:
            self._new_page()
        if size <= self._room:
            if written or self._page:
                self._put(written, size, blank=blank)
            return
        for spans in _cut(line.spans, self._dialect, line.kind, self._limit):
            written = self._dialect.line(spans, line.kind)
            if not any(span.text.strip() for span in spans):
                continue
            if units(written) > self._room:
                self._new_page()
            self._put(written, units(written))

    def _block(self, block: Block) -> None:
        if not block.text.strip():
            return
        before, after = self._dialect.fence(block.language)
        frame = units(before) + units(after)
        body = self._dialect.code(block.text)
        size = frame + units(body)
        if size > self._room and (size <= self._limit or self._room < self._limit // 2):
            self._new_page()
        if size <= self._room:
            self._put(f"{before}{body}{after}", size)
            return
        part: list[str] = []
        used = frame
        for line in _code_lines(block.text, self._dialect, self._limit - frame):
            more = units(line) + (1 if part else 0)
            if part and used + more > self._room:
                self._put_code(before, part, after)
                self._new_page()
                part, used, more = [], frame, units(line)
            if not part and not line.strip():
                continue
            part.append(line)
            used += more
        if part:
            if used > self._room:
                self._new_page()
            self._put_code(before, part, after)

    def _put_code(self, before: str, lines: Sequence[str], after: str) -> None:
        written = f"{before}{chr(10).join(lines)}{after}"
        self._put(written, units(written))


def _code_lines(text: str, dialect: Dialect, room: int) -> Iterator[str]:
    """The lines of code in the dialect; a line too long for a page is split."""
    for line in text.split("\n"):
        written = dialect.code(line)
        if units(written) <= room:
            yield written
        else:
            yield from (dialect.code(piece) for piece in _pieces(line, dialect.code, room))


def _pieces(text: str, write: Callable[[str], str], room: int) -> Iterator[str]:
    """A text in pieces that fit when written in the dialect."""
    start = used = 0
    for number, character in enumerate(text):
        size = units(write(character))
        if number > start and used + size > room:
            yield text[start:number]
            start, used = number, 0
        used += size
    yield text[start:]


def _cut(spans: Sequence[Span], dialect: Dialect, kind: LineKind, room: int) -> Iterator[list[Span]]:
    """A line in pieces that fit on a page when written in the dialect."""
    piece: list[Span] = []
    used = outer = units(dialect.line((), kind))
    for span in spans:
        span, frame = _affordable(span, dialect, kind, room)
        fresh = True
        for word in _words(span, dialect, kind, room - outer - frame):
            size = units(dialect.line((replace(span, text=word),), kind)) - outer - (0 if fresh else frame)
            if piece and used + size > room:
                yield piece
                piece, used = [], outer
                size += 0 if fresh else frame
            piece.append(replace(span, text=word))
            used += size
            fresh = False
    if piece:
        yield piece


def _affordable(span: Span, dialect: Dialect, kind: LineKind, room: int) -> tuple[Span, int]:
    """The span, and the size of its markup; without its link or marks if these would fill half a page."""
    bare = units(dialect.line((replace(span, text="x"),), kind)) - units(dialect.line((), kind)) - 1
    if bare > room // 2:
        return _affordable(replace(span, link=""), dialect, kind, room) if span.link else (Span(text=span.text), 0)
    return span, bare


def _words(span: Span, dialect: Dialect, kind: LineKind, room: int) -> Iterator[str]:
    """The words of a span with the blanks after them; a word too long for a page is split."""
    plain = replace(span, link="")

    def write(text: str) -> str:
        return dialect.line((replace(plain, text=text),), kind)

    for match in _WORDS.finditer(span.text):
        word = match[0]
        if len(word) * 4 <= room:
            yield word
        else:
            yield from _pieces(word, write, room)
