"""A reader of Telegram's MarkdownV2 that is as strict as Telegram's own: what it takes, Telegram takes."""

from __future__ import annotations

from dataclasses import dataclass, field

RESERVED = frozenset("_*[]()~`>#+-=|{}.!")
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
    message, opened, position = Message(), [], 0
    links: list[int] = []
    start_of_line = True
    while position < len(page):
        character = page[position]
        code = opened[-1] if opened and opened[-1] in ("code", "pre") else ""
        if character == "\\" and position + 1 < len(page) and "\x01" <= page[position + 1] <= "\x7e":
            message.characters.append((page[position + 1], frozenset(opened)))
            position, start_of_line = position + 2, False
            continue
        if code and character != "`":
            message.characters.append((character, frozenset(opened)))
            position += 1
            continue
        if character not in RESERVED:
            if character == "\n" and "quote" in opened:
                if opened[-1] != "quote":
                    raise Malformed("an entity goes on behind the line of a quote")
                opened.pop()
            message.characters.append((character, frozenset(opened)))
            position, start_of_line = position + 1, character == "\n"
            continue
        position = _reserved(page, position, message, opened, links, start_of_line=start_of_line)
        start_of_line = False
    if opened and opened != ["quote"]:
        raise Malformed(f"not closed: {opened}")
    return message


def _reserved(
    page: str, position: int, message: Message, opened: list[str], links: list[int], *, start_of_line: bool
) -> int:
    character = page[position]
    if character == "`":
        return _ticks(page, position, opened)
    if character == ">":
        if not start_of_line or opened:
            raise Malformed("> within a line")
        opened.append("quote")
        return position + 1
    if character == "_" and page.startswith("__", position):
        raise Malformed("__ is underline, which is never meant")
    if character in _NAMES:
        name = _NAMES[character]
        if opened and opened[-1] == name:
            opened.pop()
        elif name in opened:
            raise Malformed(f"{name} is closed across another entity")
        else:
            opened.append(name)
        return position + 1
    if character == "[":
        if "link" in opened:
            raise Malformed("a link in a link")
        opened.append("link")
        links.append(len(message.characters))
        return position + 1
    if character == "]" and opened and opened[-1] == "link" and page.startswith("](", position):
        end = position + 2
        while end < len(page) and page[end] != ")":
            end += 2 if page[end] == "\\" else 1
        if end >= len(page):
            raise Malformed("the target of a link is not closed")
        opened.pop()
        links.pop()
        return end + 1
    raise Malformed(f"{character!r} is reserved and must be escaped")


def _ticks(page: str, position: int, opened: list[str]) -> int:
    code = opened[-1] if opened and opened[-1] in ("code", "pre") else ""
    if page.startswith("```", position) and code != "code":
        if code == "pre":
            opened.pop()
            return position + 3
        if opened:
            raise Malformed("a block of code within another entity")
        end = position + 3
        while end < len(page) and not page[end].isspace() and page[end] != "`":
            end += 1
        opened.append("pre")
        return end + 1 if page[end : end + 1] == "\n" else position + 3
    if code == "pre":
        raise Malformed("a backtick in code that is not escaped")
    if code == "code":
        opened.pop()
        return position + 1
    if opened and opened != ["quote"]:
        raise Malformed("code within another entity")
    opened.append("code")
    return position + 1
