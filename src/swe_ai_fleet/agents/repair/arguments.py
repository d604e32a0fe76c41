"""The arguments of a call, read from the model's text: as JSON, or leniently, with a name for each repair."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress

from swe_ai_fleet.domain.json_values import MOST_DEPTH, is_list, is_object, parse_json
from swe_ai_fleet.domain.text import well_formed

_SPACE = re.compile(r"\s*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_CONTROL = re.compile(r"[\x00-\x1f]")
_KEY = re.compile(r"[A-Za-z_$][\w$-]{0,199}")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,399})(?:\.\d{1,399})?(?:[eE][+-]?\d{1,9})?(?![\w.])")
_CONSTANT = re.compile(r"(true|True|TRUE|false|False|FALSE|null|None|NULL)(?!\w)")
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "'": "'"}
# Escapes of regular expressions: JSON has none of them, so their meaning is unambiguous.
_LITERAL_ESCAPES = frozenset("dDsSwWBAZ.^$*+?()[]{}|-_ &#~%@!,;:=<>")
_CLOSING = {"{": "}", "[": "]", "(": ")"}
MAX_REPAIRED_CHARS = 1_000_000
_ENCODED = re.compile(r'\s*\{\s*\\"')
_FENCE = re.compile(r"\s*```[A-Za-z0-9_-]{0,20}[ \t]*\r?\n?")
# Meaningless text after the arguments: closing tags, special tokens, fences, superfluous brackets.
_REST = re.compile(r"(?:\s|`|\}|\]|\)|,|;|</?[a-z_]{1,20}>|<\|[^|<>]{0,40}\|>)*")
_TAG = re.compile(r'<(?:parameter=([\w.-]{1,100})|parameter\s+name="([\w.-]{1,100})"|([A-Za-z_]\w{0,99}))>')
_KEY_TAG, _VALUE_TAG = "arg_key", "arg_value"
_MOST_ENCODINGS = 3
_BROKEN = object()


class UnreadableArguments(ValueError):
    """The text is not JSON even when read leniently; `position` is that of the error, in characters from its start."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(problem)
        self.position = position


class TolerantReader:
    """Reads one value.

    Besides JSON it accepts: control characters in strings, single quotes, Python's constants, keys without quotes, `=`
    for `:`, a missing comma before a quoted key, a trailing comma, backslashes before characters that form no escape,
    and an object in round brackets. With `unclosed`, brackets may be missing at the end; strings must always be closed,
    since their missing part is unknown. `repairs` names the deviations from JSON.
    """

    def __init__(self, text: str, *, unclosed: bool) -> None:
        self._text = text
        self._unclosed = unclosed
        self.repairs: dict[str, None] = {}
        self.closed = True
        """Whether the text itself closes every bracket."""

    @classmethod
    def value_at(cls, text: str, start: int) -> tuple[object, int]:
        """The value that begins at `start`, with all brackets closed, and its end. Raises UnreadableArguments."""
        return cls(text, unclosed=False).read(start)

    def read(self, start: int) -> tuple[object, int]:
        """The value that begins at `start`, and its end. Raises UnreadableArguments."""
        return self._value(self._skip(start), 0)

    def _value(self, at: int, depth: int) -> tuple[object, int]:
        if depth >= MOST_DEPTH and self._text[at : at + 1] in ("{", "["):
            raise UnreadableArguments("it is nested too deeply", at)
        text = self._text
        character = text[at : at + 1]
        if character == "(" and not depth:
            self._note("json_round_brackets")
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
                self._note("json_python_constant")
            return _CONSTANTS[match[1].lower()], match.end()
        raise UnreadableArguments("a value is missing" if character else "it ends too early", at)

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
                self._note("json_equals_sign")
                at += 2 if self._text[at : at + 2] == "=>" else 1
            elif self._text[at : at + 1] == ":":
                at += 1
            else:
                raise UnreadableArguments("':' is missing" if at < len(self._text) else "it ends too early", at)
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
        character = self._text[at : at + 1]
        if character == closing:
            return at + 1
        if not character and self._unclosed:
            self._note("json_unclosed_brackets")
            self.closed = False
            return at
        return None

    def _comma(self, at: int, closing: str) -> int:
        at = self._skip(at)
        character = self._text[at : at + 1]
        if character == ",":
            at = self._skip(at + 1)
            if self._text[at : at + 1] == closing:
                self._note("json_trailing_comma")
            elif at >= len(self._text):
                # A further element is missing, and nobody knows which.
                raise UnreadableArguments("it ends too early", at)
        elif character and character != closing:
            if closing == "]" or character not in "\"'":
                raise UnreadableArguments(f"',' or '{closing}' is missing", at)
            self._note("json_missing_comma")
        return at

    def _key(self, at: int) -> tuple[str, int]:
        if self._text[at : at + 1] in ('"', "'") and at < len(self._text):
            return self._string(at)
        match = _KEY.match(self._text, at)
        if match is None:
            raise UnreadableArguments(
                "a name in quotes is missing" if at < len(self._text) else "it ends too early", at
            )
        self._note("json_unquoted_key")
        return match[0], match.end()

    def _string(self, at: int) -> tuple[str, int]:
        text, quote, start = self._text, self._text[at], at
        if quote == "'":
            self._note("json_single_quotes")
        if text.startswith(quote * 3, at):
            raise UnreadableArguments("triple quotes are Python's", at)
        pieces: list[str] = []
        at += 1
        while True:
            plain = _PLAIN[quote].match(text, at)
            assert plain is not None
            pieces.append(plain[0])
            at = plain.end()
            if at >= len(text):
                raise UnreadableArguments("the string that begins here is not closed", start)
            if text[at] == quote:
                break
            piece, at = self._escape(at, quote)
            pieces.append(piece)
        if _CONTROL.search(text, start, at):
            self._note("json_control_characters")
        return well_formed("".join(pieces)), at + 1

    def _escape(self, at: int, quote: str) -> tuple[str, int]:
        character = self._text[at + 1 : at + 2]
        if character in _ESCAPES and character:
            if character == "'" and quote == '"':
                self._note("json_escape")
            return _ESCAPES[character], at + 2
        digits = {"u": 4, "x": 2 if quote == "'" else 0}.get(character, 0)
        if digits:
            code = self._text[at + 2 : at + 2 + digits]
            if len(code) == digits and all(digit in "0123456789abcdefABCDEF" for digit in code):
                return chr(int(code, 16)), at + 2 + digits
        if character and character in _LITERAL_ESCAPES:
            self._note("json_escape")
            return "\\" + character, at + 2
        raise UnreadableArguments("this backslash begins no escape that JSON has", at)

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        if match is None:
            return at
        if match.end() > at and match[0].strip(" \t\r\n"):
            self._note("json_odd_space")
        return match.end()

    def _note(self, name: str) -> None:
        self.repairs[name] = None


def _number(text: str, at: int) -> int | float:
    if any(character in text for character in ".eE"):
        value = float(text)
        if math.isinf(value):
            raise UnreadableArguments("the number is too large", at)
        return value
    return int(text)


def read_arguments(text: str, *, truncated: bool = False) -> tuple[dict[str, object] | str, tuple[str, ...]]:
    """The arguments in a model's text, and the repairs; the end of a `truncated` text is not repaired.

    A JSON string without an object in it is returned as it is: it may be the value of an only parameter. Raises
    ValueError with the problem and its place. NaN, infinities and numbers that overflow are refused.
    """
    repairs: dict[str, None] = {}
    try:
        value = _read(text, truncated, repairs, _MOST_ENCODINGS)
    except UnreadableArguments as error:
        raise ValueError(f"{error} ({_place(text, error.position)})") from None
    return value, tuple(repairs)


def read_object(text: str) -> dict[str, object] | None:
    """The JSON object in a text; None if there is none."""
    try:
        value = read_arguments(text)[0]
    except ValueError:
        return None
    return value if isinstance(value, dict) and text.lstrip()[:1] == "{" else None


def _read(text: str, truncated: bool, repairs: dict[str, None], encodings: int) -> dict[str, object] | str:
    if not text.strip():
        return {}
    value = _json(text, repairs)
    if value is _BROKEN:
        value = _tolerant(text, truncated, repairs, encodings)
    if isinstance(value, str) and value.lstrip().lstrip('"\\')[:1] == "{" and encodings:
        repairs["json_encoded_twice"] = None
        return _read(value, truncated, repairs, encodings - 1)
    if is_list(value) and len(value) == 1 and is_object(value[0]):
        repairs["json_list_of_one"] = None
        value = value[0]
    if value is None:
        repairs["json_null"] = None
        return {}
    if isinstance(value, str) or is_object(value):
        return value
    kind = "a list" if isinstance(value, list) else "true or false" if isinstance(value, bool) else "a number"
    raise ValueError(f"it is {kind}")


def _json(text: str, repairs: dict[str, None]) -> object:
    with suppress(json.JSONDecodeError):
        return parse_json(text, finite=True)
    try:
        value = parse_json(text, control_characters=True, finite=True)
    except json.JSONDecodeError:
        return _BROKEN
    repairs["json_control_characters"] = None
    return value


def _tolerant(text: str, truncated: bool, repairs: dict[str, None], encodings: int) -> object:
    if len(text) > MAX_REPAIRED_CHARS:
        raise UnreadableArguments(f"it is not JSON, and with {len(text)} characters too long to be repaired", 0)
    if _ENCODED.match(text) and encodings:
        try:
            inner = json.loads(f'"{text}"', strict=False)
        except ValueError:
            inner = ""
        if inner:
            return inner
    start, stripped = 0, text.lstrip()
    if fence := _FENCE.match(text):
        start = fence.end()
        repairs["json_fence"] = None
    if stripped[:1] == "<" and (tagged := _tagged(text)) is not None:
        repairs["arguments_in_tags"] = None
        return tagged
    start = _beginning(text, start, repairs)
    reader = TolerantReader(text, unclosed=not truncated)
    value, end = reader.read(start)
    repairs.update(reader.repairs)
    if reader.closed:
        _after(text, end, value, repairs)
    return value


def _beginning(text: str, start: int, repairs: dict[str, None]) -> int:
    rest = text[start : start + 200].lstrip()
    if rest[:1] in ("[", "{") or (rest[:1] == "(" and rest[1:].lstrip()[:1] != "{"):
        return start
    place = text.find("{", start)
    if place < 0:
        raise UnreadableArguments("there is no JSON object in it", 0)
    repairs["json_text_before"] = None
    return place


def _after(text: str, end: int, value: object, repairs: dict[str, None]) -> None:
    """Refuse a second object after the first, since nobody knows which is meant; accept any other text."""
    rest = _REST.match(text, end)
    rest_end = rest.end() if rest else end
    if rest_end > end and text[end:rest_end].strip():
        repairs["json_text_behind"] = None
    if rest_end >= len(text):
        return
    repairs["json_text_behind"] = None
    another = text.find("{", rest_end)
    if another < 0:
        return
    try:
        second: object = TolerantReader(text, unclosed=False).read(another)[0]
    except UnreadableArguments:
        second = value if another > rest_end else None
    if second != value and second != {}:
        raise UnreadableArguments("a second object begins here; make a call of its own for it", another)


def _tagged(text: str) -> dict[str, object] | None:
    """Arguments in tags: `<parameter=path>a.py</parameter>`, `<path>a.py</path>`; None if there are none."""
    fields: dict[str, object] = {}
    at, key = 0, ""
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return fields or None
        tag = _TAG.match(text, at)
        if tag is None:
            return fields if fields and _REST.fullmatch(text, at) else None
        name = tag[1] or tag[2] or tag[3]
        closing = f"</{name}>" if tag[3] else "</parameter>"
        end = text.find(closing, tag.end())
        if end < 0:
            return None
        body = text[tag.end() : end].removeprefix("\n").removesuffix("\n")
        at = end + len(closing)
        if name == _KEY_TAG:
            key = body.strip()
        elif name == _VALUE_TAG:
            fields[key] = body
        else:
            fields[name] = body


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - text.rfind(chr(10), 0, position)} of the arguments"
