"""The arguments of a call, read from the text that a model wrote."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from swe_ai_fleet.agents.repair.tolerant_json import TolerantReader, Unreadable
from swe_ai_fleet.domain.json_values import is_list, is_object, parse_json

MAX_MENDED_CHARS = 1_000_000
_ENCODED = re.compile(r'\s*\{\s*\\"')
_FENCE = re.compile(r"\s*```[A-Za-z0-9_-]{0,20}[ \t]*\r?\n?")
# What may stand behind the arguments and say nothing: closing tags, special tokens, fences, brackets too many.
_REST = re.compile(r"(?:\s|`|\}|\]|\)|,|;|</?[a-z_]{1,20}>|<\|[^|<>]{0,40}\|>)*")
_TAG = re.compile(r'<(?:parameter=([\w.-]{1,100})|parameter\s+name="([\w.-]{1,100})"|([A-Za-z_]\w{0,99}))>')
_KEY_TAG, _VALUE_TAG = "arg_key", "arg_value"
_MOST_ENCODINGS = 3


def read_arguments(text: str, *, truncated: bool = False) -> tuple[dict[str, object] | str, tuple[str, ...]]:
    """The arguments that a model wrote, and what had to be repaired to read them.

    A JSON string that holds no object is given back as it is: a function of one parameter can mean it.

    Args:
        text: What the model wrote.
        truncated: The reply was cut off, so text that ends too early is not repaired.

    Raises ValueError saying what is wrong and where. NaN, infinities and numbers that overflow are refused.
    """
    repairs: dict[str, None] = {}
    try:
        value = _read(text, truncated, repairs, _MOST_ENCODINGS)
    except Unreadable as error:
        raise ValueError(f"{error} ({_place(text, error.position)})") from None
    return value, tuple(repairs)


def read_object(text: str) -> dict[str, object] | None:
    """The object that a text holds as JSON, None where it holds none."""
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


_BROKEN = object()


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
    if len(text) > MAX_MENDED_CHARS:
        raise Unreadable(f"it is not JSON, and with {len(text)} characters too long to be repaired", 0)
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
    """Where the object begins: at once, or behind words that are none of it."""
    rest = text[start : start + 200].lstrip()
    if rest[:1] in ("[", "{") or (rest[:1] == "(" and rest[1:].lstrip()[:1] != "{"):
        return start
    place = text.find("{", start)
    if place < 0:
        raise Unreadable("there is no JSON object in it", 0)
    repairs["json_text_before"] = None
    return place


def _after(text: str, end: int, value: object, repairs: dict[str, None]) -> None:
    """Refuses a second object behind the first, for nobody knows which is meant; forgives anything else."""
    rest = _REST.match(text, end)
    behind = rest.end() if rest else end
    if behind > end and text[end:behind].strip():
        repairs["json_text_behind"] = None
    if behind >= len(text):
        return
    repairs["json_text_behind"] = None
    another = text.find("{", behind)
    if another < 0:
        return
    try:
        second: object = TolerantReader(text, unclosed=False).read(another)[0]
    except Unreadable:
        second = value if another > behind else None
    if second != value and second != {}:
        raise Unreadable("a second object begins here; make a call of its own for it", another)


def _tagged(text: str) -> dict[str, object] | None:
    """Arguments between tags of their own: `<parameter=path>a.py</parameter>`, `<path>a.py</path>`; None if not so."""
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
