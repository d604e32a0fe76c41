"""A reader of JSON as models write it: one pass, bounded depth, and no guess about what a string holds."""

from __future__ import annotations

import math
import re

from swe_ai_fleet.domain.json_values import MOST_DEPTH
from swe_ai_fleet.domain.text import well_formed

_SPACE = re.compile(r"\s*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_CONTROL = re.compile(r"[\x00-\x1f]")
_KEY = re.compile(r"[A-Za-z_$][\w$-]{0,199}")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,399})(?:\.\d{1,399})?(?:[eE][+-]?\d{1,9})?(?![\w.])")
_CONSTANT = re.compile(r"(true|True|TRUE|false|False|FALSE|null|None|NULL)(?!\w)")
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "'": "'"}
# Of a regular expression: in JSON they mean nothing, so only one thing can be meant.
_LITERAL_ESCAPES = frozenset("dDsSwWBAZ.^$*+?()[]{}|-_ &#~%@!,;:=<>")
_CLOSING = {"{": "}", "[": "]", "(": ")"}


class Unreadable(ValueError):
    """The text is not JSON even when read leniently; `position` is where that shows, in characters from its start."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(problem)
        self.position = position


class TolerantReader:
    """Reads one value.

    Beside JSON it takes: control characters in strings, single quotes, Python's constants, keys without quotes, `=`
    for `:`, a missing comma before a quoted key, a superfluous one at an end, backslashes before characters that no
    escape has, and a whole object in round brackets. With `unclosed`, brackets may be missing at the end; a string
    must always be closed, for who knows what is missing of it. What it took beyond JSON stands in `repairs`.

    Args:
        text: The text; nothing of it is copied but the values.
        unclosed: Whether missing closing brackets are forgiven.
    """

    def __init__(self, text: str, *, unclosed: bool) -> None:
        self._text = text
        self._unclosed = unclosed
        self.repairs: dict[str, None] = {}
        self.closed = True
        """Whether every bracket was closed by the text itself."""

    @classmethod
    def value_at(cls, text: str, start: int) -> tuple[object, int]:
        """The value that begins there, brackets all closed, and where it ends. Raises Unreadable."""
        return cls(text, unclosed=False).read(start)

    def read(self, start: int) -> tuple[object, int]:
        """The value that begins at `start`, and where it ends. Raises Unreadable."""
        return self._value(self._skip(start), 0)

    def _value(self, at: int, depth: int) -> tuple[object, int]:
        if depth >= MOST_DEPTH and self._text[at : at + 1] in ("{", "["):
            raise Unreadable("it is nested too deeply", at)
        text = self._text
        character = text[at : at + 1]
        if character == "(" and not depth:
            self._mend("json_round_brackets")
            return self._object(at, depth)
        if character == "{":
            return self._object(at, depth)
        if character == "[":
            return self._array(at, depth)
        if character in ('"', "'") and character:
            return self._string(at)
        if (match := _NUMBER.match(text, at)) is not None:
            return _number(match[0], at), match.end()
        if (match := _CONSTANT.match(text, at)) is not None:
            if match[1] not in ("true", "false", "null"):
                self._mend("json_python_constant")
            return _CONSTANTS[match[1].lower()], match.end()
        raise Unreadable("a value is missing" if character else "it ends too early", at)

    def _object(self, at: int, depth: int) -> tuple[object, int]:
        closing = _CLOSING[self._text[at]]
        fields: dict[str, object] = {}
        at = self._skip(at + 1)
        while True:
            if (end := self._end(at, closing)) is not None:
                return fields, end
            key, at = self._key(at)
            at = self._skip(at)
            if self._text[at : at + 1] == "=":
                self._mend("json_equals_sign")
                at += 2 if self._text[at : at + 2] == "=>" else 1
            elif self._text[at : at + 1] == ":":
                at += 1
            else:
                raise Unreadable("':' is missing" if at < len(self._text) else "it ends too early", at)
            fields[key], at = self._value(self._skip(at), depth + 1)
            at = self._comma(at, closing)

    def _array(self, at: int, depth: int) -> tuple[object, int]:
        items: list[object] = []
        at = self._skip(at + 1)
        while True:
            if (end := self._end(at, "]")) is not None:
                return items, end
            item, at = self._value(at, depth + 1)
            items.append(item)
            at = self._comma(at, "]")

    def _end(self, at: int, closing: str) -> int | None:
        """Where the container ends if it ends here."""
        character = self._text[at : at + 1]
        if character == closing:
            return at + 1
        if not character and self._unclosed:
            self._mend("json_unclosed_brackets")
            self.closed = False
            return at
        return None

    def _comma(self, at: int, closing: str) -> int:
        at = self._skip(at)
        character = self._text[at : at + 1]
        if character == ",":
            at = self._skip(at + 1)
            if self._text[at : at + 1] == closing:
                self._mend("json_trailing_comma")
            elif at >= len(self._text):
                # More was to come, and nobody knows what.
                raise Unreadable("it ends too early", at)
        elif character and character != closing:
            if closing == "]" or character not in "\"'":
                raise Unreadable(f"',' or '{closing}' is missing", at)
            self._mend("json_missing_comma")
        return at

    def _key(self, at: int) -> tuple[str, int]:
        if self._text[at : at + 1] in ('"', "'") and at < len(self._text):
            return self._string(at)
        match = _KEY.match(self._text, at)
        if match is None:
            raise Unreadable("a name in quotes is missing" if at < len(self._text) else "it ends too early", at)
        self._mend("json_unquoted_key")
        return match[0], match.end()

    def _string(self, at: int) -> tuple[str, int]:
        text, quote, start = self._text, self._text[at], at
        if quote == "'":
            self._mend("json_single_quotes")
        if text.startswith(quote * 3, at):
            raise Unreadable("triple quotes are Python's", at)
        pieces: list[str] = []
        at += 1
        while True:
            plain = _PLAIN[quote].match(text, at)
            assert plain is not None
            pieces.append(plain[0])
            at = plain.end()
            if at >= len(text):
                raise Unreadable("the string that begins here is not closed", start)
            if text[at] == quote:
                break
            piece, at = self._escape(at, quote)
            pieces.append(piece)
        if _CONTROL.search(text, start, at):
            self._mend("json_control_characters")
        return well_formed("".join(pieces)), at + 1

    def _escape(self, at: int, quote: str) -> tuple[str, int]:
        character = self._text[at + 1 : at + 2]
        if character in _ESCAPES and character:
            if character == "'" and quote == '"':
                self._mend("json_escape")
            return _ESCAPES[character], at + 2
        digits = {"u": 4, "x": 2 if quote == "'" else 0}.get(character, 0)
        if digits:
            code = self._text[at + 2 : at + 2 + digits]
            if len(code) == digits and all(digit in "0123456789abcdefABCDEF" for digit in code):
                return chr(int(code, 16)), at + 2 + digits
        if character and character in _LITERAL_ESCAPES:
            self._mend("json_escape")
            return "\\" + character, at + 2
        raise Unreadable("this backslash begins no escape that JSON has", at)

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        if match is None:
            return at
        if match.end() > at and match[0].strip(" \t\r\n"):
            self._mend("json_odd_space")
        return match.end()

    def _mend(self, name: str) -> None:
        self.repairs[name] = None


def _number(text: str, at: int) -> int | float:
    if any(character in text for character in ".eE"):
        value = float(text)
        if math.isinf(value):
            raise Unreadable("the number is too large", at)
        return value
    return int(text)
