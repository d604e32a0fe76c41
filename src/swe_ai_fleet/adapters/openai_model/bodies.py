"""The JSON that servers send, read even where it breaks the rules."""

from __future__ import annotations

import json
import re

from pydantic_core import from_json

from swe_ai_fleet.agents.tool_call_json import encodable

_MOST_DIGITS = 300
_SPACE = re.compile(r"[\s\ufeff]*+")


def read_json(body: bytes, repairs: list[str]) -> object:
    """The value of a body; what had to be mended is added to `repairs`.

    Invalid UTF-8 and halves of surrogate pairs become replacement characters; control characters in strings and
    anything behind the value are let pass. Raises ValueError where there is no value.
    """
    try:
        return from_json(body)
    except ValueError:
        pass
    value = read_loosely(body, repairs)
    try:
        text = json.dumps(value, ensure_ascii=False)
        mended = encodable(text)
        if mended == text:
            return value
        repairs.append("half a surrogate pair replaced")
        return json.loads(mended)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_loosely(body: bytes, repairs: list[str]) -> object:
    """As `read_json`, halves of surrogate pairs left alone: in a stream the other half may come in the next event."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = body.decode(errors="replace")
        repairs.append("invalid UTF-8 replaced")
    start = _SPACE.match(text)
    try:
        value, end = _DECODER.raw_decode(text, start.end() if start else 0)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text[end:].strip():
        repairs.append("text behind the answer's JSON left out")
    if _has_control_characters(text):
        repairs.append("control characters in the answer's JSON let pass")
    return value


def _integer(digits: str) -> int:
    # Beyond its own limit int() raises; no number that long counts anything.
    return int(digits) if len(digits) <= _MOST_DIGITS else 0


def _has_control_characters(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        return "control character" in str(error)
    return False


_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)
