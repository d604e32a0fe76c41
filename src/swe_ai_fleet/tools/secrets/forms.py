"""What a secret value looks like once other programs have written it, and where such forms stand in a text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote, quote_plus

from swe_ai_fleet.tools.secrets.unescaped import unescaped

SHORTEST = 6
"""Shorter values are not masked: they occur by chance and would riddle harmless text."""
CUT_SHORTEST = 4
"""At a place where a text was cut, so many characters of a secret are taken for one."""
_ARMOUR = ("-----BEGIN ", "-----END ")
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """The forms of some values: as text (whose escapes are undone, in small letters), base64, and hexadecimal."""

    plain: frozenset[str]
    encoded: frozenset[str]
    hexadecimal: frozenset[str]


def forms(values: Iterable[str]) -> Forms:
    """Every form of the values, of each of their lines and of each without the white space around it."""
    written = {part for value in values for part in _parts(value)}
    raw = {encoding for value in written for encoding in _encodings(value)}
    plain = {
        folded
        for value in written
        for variant in (value, value.upper(), value.lower(), value.replace(" ", "+"), _as_latin(value))
        for text in _layers(variant)
        if len(folded := fold(text)) >= SHORTEST
    }
    return Forms(
        plain=frozenset(plain),
        encoded=frozenset(form for one in raw for form in _base64_forms(one)),
        hexadecimal=frozenset(one.hex() for one in raw),
    )


def fold(text: str) -> str:
    """The text in small letters, character for character."""
    # The one letter whose small form is two characters, and the one whose small form hangs on its place.
    return text.replace("İ", "i").lower().replace("ς", "σ")  # noqa: RUF001 - sigma it is


class Needles:
    """A set of strings that is looked for in texts, also where a text was cut in the middle of one."""

    def __init__(self, words: Iterable[str], *, encoded: bool = False) -> None:
        self._words = sorted(words)
        self._encoded = encoded
        self._heads: dict[str, list[str]] = {}
        self._tails: dict[str, list[str]] = {}
        self._firsts: dict[str, list[str]] = {}
        for word in self._words:
            self._heads.setdefault(word[:CUT_SHORTEST], []).append(word)
            self._tails.setdefault(word[-CUT_SHORTEST:], []).append(word)
            self._firsts.setdefault(word[0], []).append(word)
        self.longest = max(map(len, self._words), default=0)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where they stand, overlapping ones too."""
        for word in self._words:
            start = text.find(word)
            while start >= 0:
                yield self._widened(text, start, start + len(word))
                start = text.find(word, start + 1)

    def cut_before(self, text: str, end: int, floor: int, *, share: int = 0) -> int:
        """Where the beginning of one starts that the cut at `end` leaves, looking no further back than `floor`.

        `share` makes it modest: less than that part of one, or fewer than six characters, do not count. -1: none does.
        """
        for match in self._heads_at.finditer(text, max(floor, end - self.longest), end):
            for word in self._heads[match[1]]:
                if end - match.start() >= _enough(word, share) and word.startswith(text[match.start() : end]):
                    return match.start()
        return -1

    def cut_after(self, text: str, start: int, ceiling: int, *, share: int = 0, skip: int = 0) -> int:
        """Where the ending of one ends that the cut at `start` leaves; the counterpart of `cut_before`.

        Up to `skip` characters in front of it may be something else.
        """
        found = -1
        for match in self._tails_at.finditer(text, start, min(ceiling, start + self.longest)):
            end = match.end(1)
            for word in self._tails[match[1]]:
                if any(
                    end - begin >= _enough(word, share) and word.endswith(text[begin:end])
                    for begin in range(start, min(start + skip, match.start()) + 1)
                ):
                    found = end
        return found

    def pending(self, text: str) -> int:
        """From where on the text may be the beginning of one; its length where it is none's."""
        for start in range(max(0, len(text) - self.longest + 1), len(text)):
            if any(word.startswith(text[start:]) for word in self._firsts.get(text[start], ())):
                return max(0, start - 1) if self._encoded else start
        return len(text)

    @cached_property
    def _heads_at(self) -> re.Pattern[str]:
        return _overlapping(self._heads)

    @cached_property
    def _tails_at(self) -> re.Pattern[str]:
        return _overlapping(self._tails)

    def _widened(self, text: str, start: int, end: int) -> tuple[int, int]:
        """With the base64 characters at its ends that it shares with its neighbours, and the padding."""
        if not self._encoded:
            return start, end
        if start and text[start - 1] in _BASE64:
            start -= 1
        if end < len(text) and text[end] in _BASE64:
            end += 1
        while end < len(text) and text[end] == "=":
            end += 1
        return start, end


def _overlapping(pieces: Iterable[str]) -> re.Pattern[str]:
    """A pattern of our own literals, grouped by their first characters so that most places cost one comparison."""
    groups: dict[str, list[str]] = {}
    for piece in pieces:
        groups.setdefault(piece[0], []).append(re.escape(piece[1:]))
    choices = (f"{re.escape(first)}(?:{'|'.join(rests)})" for first, rests in groups.items())
    return re.compile(f"(?=({'|'.join(choices)}))", re.DOTALL)


def _enough(word: str, share: int) -> int:
    return max(SHORTEST, len(word) // share) if share else CUT_SHORTEST


def _parts(value: str) -> Iterator[str]:
    lines = value.splitlines() if len(value.splitlines()) > 1 else []
    for part in (value, value.strip(), *lines, *(line.strip() for line in lines)):
        if len(part) >= SHORTEST and not part.isspace() and not (part in lines and part.startswith(_ARMOUR)):
            yield part


def _layers(value: str) -> Iterator[str]:
    """The value as it is and as it reads where its own escapes are undone along with those of the text around it."""
    yield value
    while (plain := unescaped(value)) != value:
        value = plain
        yield value


def _encodings(value: str) -> Iterator[bytes]:
    """The bytes that an encoder may be given for it: itself, or as part of a JSON document or an address."""
    for text in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe="")):
        yield text.encode("utf-8", "replace")
    yield quote_plus(value).encode()


def _as_latin(value: str) -> str:
    """UTF-8 read byte by byte, as escapes of single bytes are."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("latin-1")


def _base64_forms(raw: bytes) -> Iterator[str]:
    # At each alignment within a longer text a value has another form; the outer characters mix with its neighbours.
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
        stable = encoded[(0, 2, 3)[offset] : len(encoded) - (0 if (offset + len(raw)) % 3 == 0 else 1)]
        yield stable
        yield stable.replace("+", "-").replace("/", "_")
