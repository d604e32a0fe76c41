"""A reader of Telegram's MarkdownV2 that is as strict as Telegram's own: what it takes, Telegram takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_ESCAPED, _PLAIN = r"(?s)\\(?P<escaped>[\x01-\x7e])", r"(?P<plain>.)"
_OUTSIDE = re.compile(
    rf"{_ESCAPED}|(?P<ticks>```(?:[^\s`]*\n)?|`)|(?P<target>\]\((?:\\.|[^)\\])*\))"
    rf"|(?P<reserved>__|[_*\[\]()~>#+\-=|{{}}.!])|{_PLAIN}"
)
_INSIDE = {
    "code": re.compile(f"{_ESCAPED}|(?P<ticks>`)|{_PLAIN}"),
    "pre": re.compile(f"{_ESCAPED}|(?P<ticks>```|`)|{_PLAIN}"),
}
_NAMES = {"*": "bold", "_": "italic", "~": "strike"}


class Malformed(Exception):
    """The message would be refused."""


@dataclass(slots=True)
class Message:
    """What a message says: characters, each with the entities it lies in."""

    characters: list[tuple[str, frozenset[str]]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(character for character, _ in self.characters)

    @property
    def bare(self) -> list[tuple[str, frozenset[str]]]:
        """Without blanks, which paging may take away."""
        return [(character, marks) for character, marks in self.characters if not character.isspace()]


def parse(page: str) -> Message:
    """Read a page. Raises Malformed for a reserved character that is not escaped, or an entity that is not closed."""
    message, opened, starts, position = Message(), list[str](), True, 0
    while token := _INSIDE.get("".join(opened[-1:]), _OUTSIDE).match(page, position):
        position, text = token.end(), token["escaped"] or token[0]
        in_code, found = token.re is not _OUTSIDE, token.groupdict()
        if found["ticks"]:
            _ticks(text, opened)
        elif found["escaped"] or found["plain"]:
            ends = text == "\n" and "quote" in opened and not in_code
            if ends and opened.pop() != "quote":
                raise Malformed("an entity goes on behind the line of a quote")
            message.characters.append((text, frozenset(opened)))
        elif found["reserved"]:
            _reserved(text, opened, starts)
        elif opened[-1:] == ["link"]:
            opened.pop()
        else:
            raise Malformed("the target of no link")
        starts = text == "\n" and not in_code
    if opened and opened != ["quote"]:
        raise Malformed(f"not closed: {opened}")
    return message


def _reserved(text: str, opened: list[str], starts: bool) -> None:
    name = _NAMES.get(text, {">": "quote", "[": "link"}.get(text, ""))
    if not name:
        raise Malformed(f"{text!r} is reserved and must be escaped")
    if name == "quote" and (not starts or opened):
        raise Malformed("> within a line")
    if name not in opened:
        opened.append(name)
    elif opened[-1] != name or name == "link":
        raise Malformed(f"{name} is closed across another entity, or lies in itself")
    else:
        opened.pop()


def _ticks(text: str, opened: list[str]) -> None:
    name = "pre" if text.startswith("```") else "code"
    if opened[-1:] == [name]:
        opened.pop()
    elif opened and (opened != ["quote"] or name == "pre"):
        raise Malformed(f"{name} within another entity")
    else:
        opened.append(name)
