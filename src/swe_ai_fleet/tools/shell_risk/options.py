"""Options that a command is known to be harmless with, and reading its words by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swe_ai_fleet.tools.shell_risk.words import Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A command's words told apart. `given` has each option without its dashes, with its value if it takes one."""

    given: tuple[tuple[str, Word | None], ...]
    operands: tuple[Word, ...]

    def values(self, *names: str) -> list[Word]:
        """What the options of these names were given."""
        return [value for name, value in self.given if name in names and value is not None]

    def has(self, *names: str) -> bool:
        """Whether one of the options is there."""
        return any(name in names for name, _ in self.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that are known.

    Args:
        flags: Letters without a value.
        valued: Letters with one, attached or in the next word.
        attached: Letters whose value, if any, stands in the same word.
        long: Names without dashes; one that ends in `=` takes a value, in the same word or the next, and only in the
            same where its name stands there without the sign too.
        numbers: Whether `-5` is one.
        permuted: Whether options are also looked for behind the first operand.
    """

    flags: str = ""
    valued: str = ""
    attached: str = ""
    long: frozenset[str] = field(default_factory=frozenset[str])
    numbers: bool = False
    permuted: bool = True

    def parse(self, words: Sequence[Word]) -> Parsed | None:
        """The words told apart; None where one is, or may be, an option that is not known."""
        given: list[tuple[str, Word | None]] = []
        operands: list[Word] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word.text is None and not word.operand:
                return None
            text = word.text
            if text == "--":
                operands += rest
                break
            if text is None or text == "-" or not text.startswith("-"):
                operands.append(word)
                if not self.permuted:
                    operands += rest
                    break
            elif text.startswith("--"):
                if not self._long(text[2:], rest, given):
                    return None
            elif not (self.numbers and text[1:].isdigit()) and not self._short(text[1:], rest, given):
                return None
        return Parsed(given=tuple(given), operands=tuple(operands))

    def _long(self, text: str, rest: list[Word], given: list[tuple[str, Word | None]]) -> bool:
        name, sign, value = text.partition("=")
        if f"{name}=" in self.long and (sign or name not in self.long):
            if not sign and (not rest or rest[0].many):
                return False
            given.append((name, Word(text=value, head=value) if sign else rest.pop(0)))
            return True
        given.append((name, None))
        return name in self.long and not sign

    def _short(self, text: str, rest: list[Word], given: list[tuple[str, Word | None]]) -> bool:
        for at, letter in enumerate(text, start=1):
            value = text[at:]
            if letter in self.valued:
                if not value and (not rest or rest[0].many):
                    return False
                given.append((letter, Word(text=value, head=value) if value else rest.pop(0)))
                return True
            if letter in self.attached:
                given.append((letter, Word(text=value, head=value)))
                return True
            if letter not in self.flags:
                return False
            given.append((letter, None))
        return True


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())
