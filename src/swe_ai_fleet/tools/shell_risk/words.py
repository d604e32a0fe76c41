"""A word of a command as far as it is known before the command runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HIDDEN = re.compile(r"[/{,]\.|\.\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word as it is written.

    `text` is what the shell makes of it, None where only running it would show. `head` is what its value begins with in
    any case. `many` says that it may become several words or none. `shape` is a pattern of names (`src/*.py`,
    `a/{b,c}`) in a word that is nothing but literal otherwise. `number`: its value is digits, whatever it is.
    """

    text: str | None
    head: str
    many: bool = False
    shape: str | None = None
    quoted: bool = False
    number: bool = False
    written: str = ""

    @property
    def operand(self) -> bool:
        """Whether no value that it can have is an option, or a sign that stands where options do."""
        if self.shape is None and self.many:
            return False
        start = self.head if self.text is None else self.text
        return bool(start) and start[0] not in "-+(!,="

    @property
    def path(self) -> str | None:
        """A path for all that a word can be, to judge where it lies; None where that cannot be said."""
        if self.text is not None:
            return self.text
        if self.shape is None or not self.operand:
            return None
        patterns = [part for part in self.shape.split("/") if re.search(r"[*?\[{]", part)]
        # A pattern leaves out names that begin with a dot unless it begins with one itself.
        if _HIDDEN.search(self.shape.removeprefix("./")) or any(part.startswith(".") for part in patterns):
            return None
        return self.shape


def literal(text: str) -> Word:
    """A word whose value is known."""
    return Word(text=text, head=text, number=text.isdigit() and text.isascii())


def computed(head: str = "", *, many: bool = False) -> Word:
    """A word of which only the beginning is known."""
    return Word(text=None, head=head, many=many)
