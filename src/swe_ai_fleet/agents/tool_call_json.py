"""Tool calls as the JSON values that models write for them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

_SPACE = re.compile(r"\s*+")
_DECODER = json.JSONDecoder(strict=False)
_NAME_KEYS = ("name", "tool_name", "tool", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_BESIDES = frozenset({*_NAME_KEYS, "id", "type"})
_BARE_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RawToolCall:
    """A call found in text. `arguments` is the text of its JSON value, well-formed or not."""

    name: str
    arguments: str


def decode(text: str, start: int) -> tuple[object, int]:
    """The JSON value at a place and where it ends; where there is none, None and minus the place that spoilt it.

    Reading JSON by its own rules lets an argument contain a closing tag.
    """
    space = _SPACE.match(text, start)
    begin = space.end() if space else start
    try:
        return _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        return None, -error.pos
    except (ValueError, RecursionError):
        return None, -begin


def calls_in(value: object) -> list[RawToolCall] | None:
    """The calls that a JSON value stands for, in any of the usual shapes; None where it stands for none."""
    calls: list[RawToolCall] = []
    for item in items_of(value):
        fields = fields_of(item)
        fields = fields_of(fields.get("function")) or fields
        names = (fields.get(key) for key in _NAME_KEYS)
        name = next((name for name in names if isinstance(name, str) and name), "")
        if not name:
            return None
        rest = {key: other for key, other in fields.items() if key not in _BESIDES}
        arguments = next((fields[key] for key in _ARGUMENT_KEYS if key in fields), rest)
        try:
            text = arguments if isinstance(arguments, str) else dumps({} if arguments is None else arguments)
        except RecursionError:
            return None
        calls.append(RawToolCall(name=encodable(name), arguments=encodable(text)))
    return calls or None


def is_call(value: object) -> bool:
    """Whether a value that stands alone, with no mark that announces a call, can't well be anything else."""
    for item in items_of(value):
        fields = fields_of(item)
        arguments = fields.get("arguments", fields.get("parameters"))
        if not _BARE_KEYS.issuperset(fields) or not isinstance(fields.get("name"), str):
            return False
        if not isinstance(arguments, dict):
            return False
    return True


def dumps(value: object) -> str:
    """The value as JSON that has a UTF-8 form."""
    text = json.dumps(value, ensure_ascii=False)
    # Half a surrogate pair has none, so it stays the escape that it was.
    return text if _has_utf8(text) else json.dumps(value)


def encodable(text: str) -> str:
    """The text, halves of surrogate pairs made whole where they meet and replaced where they do not."""
    return text if _has_utf8(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def items_of(value: object) -> list[object]:
    """The items of a list; of anything else, that alone."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def fields_of(value: object) -> Mapping[str, object]:
    """The value where it is an object, else an empty one."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}
