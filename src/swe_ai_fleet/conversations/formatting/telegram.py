"""Telegram's MarkdownV2: escapes and markup.

The rules are those of the Bot API's section "MarkdownV2 style": outside of entities eighteen characters and the
backslash are escaped, in code the backtick and the backslash, in the target of a link the closing parenthesis and the
backslash. Code holds no other entity and lies in none.
"""

from __future__ import annotations

from collections.abc import Sequence

from swe_ai_fleet.conversations.formatting.document import TELEGRAM_WIDTH, Kind
from swe_ai_fleet.conversations.formatting.inline import Mark, Span

_TEXT = str.maketrans({character: f"\\{character}" for character in "_*[]()~`>#+-=|{}.!\\"})
_CODE = str.maketrans({character: f"\\{character}" for character in "`\\"})
_TARGET = str.maketrans({character: f"\\{character}" for character in ")\\"})
_SIGNS = {Mark.BOLD: "*", Mark.ITALIC: "_", Mark.STRIKE: "~", Mark.CODE: "`"}
# Links enclose everything else, so two equal signs never meet, which would have another meaning.
_ORDER = (Mark.BOLD, Mark.ITALIC, Mark.STRIKE)


def escaped(text: str) -> str:
    """Text that is shown as it is."""
    return text.translate(_TEXT)


class MarkdownV2:
    """Writes lines and code for Telegram."""

    width = TELEGRAM_WIDTH

    def line(self, spans: Sequence[Span], kind: Kind) -> str:
        """One line; all markup that is opened on it is closed on it."""
        written: list[str] = [">"] if kind is Kind.QUOTE else []
        opened: list[tuple[Mark | None, str]] = []
        for span in spans:
            wanted = _entities_of(span, kind)
            same = 0
            while same < min(len(opened), len(wanted)) and opened[same] == wanted[same]:
                same += 1
            while len(opened) > same:
                written.append(_closing(*opened.pop()))
            for entry in wanted[same:]:
                opened.append(entry)
                written.append("[" if entry[0] is None else _SIGNS[entry[0]])
            inside_code = bool(opened) and opened[-1][0] is Mark.CODE
            written.append(span.text.translate(_CODE if inside_code else _TEXT))
        written += [_closing(*entry) for entry in reversed(opened)]
        return "".join(written)

    def fence(self, language: str) -> tuple[str, str]:
        """The fences before and behind code."""
        return f"```{language.translate(_CODE)}\n", "\n```"

    def code(self, text: str) -> str:
        """Code between its fences."""
        return text.translate(_CODE)


def _entities_of(span: Span, kind: Kind) -> list[tuple[Mark | None, str]]:
    """The entities around a piece, the outermost first; a link has a target instead of a mark."""
    if Mark.CODE in span.marks:
        return [] if kind is Kind.QUOTE else [(Mark.CODE, "")]
    link: list[tuple[Mark | None, str]] = [(None, span.link)] if span.link else []
    return [*link, *((mark, "") for mark in _ORDER if mark in span.marks)]


def _closing(mark: Mark | None, target: str) -> str:
    return f"]({target.translate(_TARGET)})" if mark is None else _SIGNS[mark]


def unmarked(page: str) -> str:
    """The text of a page of ours without markup, for clients that cannot read it."""
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
            text.append(f" ({_unescaped(page[position + 2 : end])})")
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


def _unescaped(text: str) -> str:
    return text.replace("\\)", ")").replace("\\\\", "\\")
