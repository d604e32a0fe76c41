"""JSON of untrusted origin: parsed in one place, and read without assuming a particular shape.

The values from here can be traversed, serialised and logged without another check: they are at most `MOST_DEPTH` levels
deep and contain no lone surrogates. Callers bound the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from typing import NoReturn, ParamSpec, TypeGuard, TypeVar

from swe_ai_fleet.domain.text import well_formed

MOST_DEPTH = 100
"""The most levels of lists and objects: a deeper value could overflow the stack of its reader."""

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

P = ParamSpec("P")
R = TypeVar("R")


def parsed(parse: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
    """The result of a parser for an untrusted text in any language.

    Raises ValueError for a text that nests too deeply for the parser, and whatever the parser raises.
    """
    try:
        return parse(*given, **named)
    except (RecursionError, MemoryError):
        raise ValueError("nested too deeply") from None


def parse_json(text: str | bytes, *, control_characters: bool = False, finite: bool = False) -> object:
    """The value of a JSON text; U+FFFD replaces lone surrogates.

    Args:
        control_characters: Strings may contain line ends and tabs unescaped, as models write them.
        finite: NaN, Infinity and numbers that are too large for a float are refused.

    Raises:
        ValueError: The text is not JSON, not UTF-8, or nested too deeply.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    decoder = _decoder(strict=not control_characters, finite=finite)
    return _safe(parsed(decoder.decode, text), text)


def parse_json_at(text: str, start: int) -> tuple[object, int]:
    """The value that begins at a position of a model's text, and where it ends. Raises ValueError as `parse_json`."""
    value, end = parsed(_decoder(strict=False, finite=False).raw_decode, text, start)
    return _safe(value, text[start:end]), end


def json_or_none(text: str | bytes, *, finite: bool = False) -> object:
    """The value of a JSON text; None where the text is not JSON."""
    try:
        return parse_json(text, finite=finite)
    except ValueError:
        return None


def json_object(text: str | bytes, *, finite: bool = False) -> Mapping[str, object]:
    """The JSON object of a text; empty where the text is not one."""
    return mapping(json_or_none(text, finite=finite))


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether a JSON value is a list."""
    return isinstance(value, list)


def is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether one of our own JSON-like values is an object; frozen ones need not be dicts."""
    return isinstance(value, dict | Mapping)


def is_array(value: object) -> TypeGuard[Sequence[object]]:
    """Whether one of our own JSON-like values is a list; frozen ones are tuples."""
    return isinstance(value, list | tuple)


def is_strings(value: object) -> TypeGuard[list[str]]:
    """Whether a JSON value is a list of strings."""
    return is_list(value) and all(isinstance(item, str) for item in value)


def mapping(value: object, *names: str) -> Mapping[str, object]:
    """The value if it is an object, or the nested object at the path `names`; empty where there is none."""
    members = value if is_mapping(value) else dict[str, object]()
    return mapping(members.get(names[0]), *names[1:]) if names else members


def mappings(value: object) -> list[Mapping[str, object]]:
    """The objects in the value if it is a list, else none."""
    return [item for item in items(value) if is_mapping(item)]


def items(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return value if is_list(value) else []


def integer(value: object) -> int:
    """The value if it is a whole number, else 0."""
    return value if isinstance(value, int) else 0


def number_in(text: str | bytes, least: float, most: float) -> float | None:
    """The number in a text; None where it is not a number from `least` to `most`."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if least <= number <= most else None


def string(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def strings(value: object) -> list[str]:
    """The strings in the value if it is a list, the value itself if it is a string, else none."""
    if isinstance(value, str):
        return [value]
    return [item for item in items(value) if isinstance(item, str)]


def with_texts(value: object, change: Callable[[str], str], *, depth: int = MOST_DEPTH) -> object:
    """The value with each string in it changed, including field names. Raises ValueError if it is too deep."""
    if isinstance(value, str):
        return change(value)
    if not (is_mapping(value) or is_array(value)):
        return value
    if not depth:
        raise ValueError("nested too deeply")
    if is_array(value):
        return [with_texts(part, change, depth=depth - 1) for part in value]
    return {change(str(name)): with_texts(part, change, depth=depth - 1) for name, part in mapping(value).items()}


def _safe(value: object, text: str) -> object:
    if text.count("[") + text.count("{") > MOST_DEPTH and _is_deep(value):
        raise ValueError("nested too deeply")
    is_well_formed = _ESCAPED_SURROGATE.search(text) is None and well_formed(text) is text
    return value if is_well_formed else with_texts(value, well_formed)


def _is_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(MOST_DEPTH):
        level = [part for each in level for part in _parts(each) if isinstance(part, dict | list)]
    return bool(level)


def _parts(value: object) -> Iterable[object]:
    return value.values() if is_object(value) else items(value)


@cache
def _decoder(*, strict: bool, finite: bool) -> json.JSONDecoder:
    parse_constant, parse_float = (_refuse, _finite) if finite else (None, None)
    return json.JSONDecoder(strict=strict, parse_constant=parse_constant, parse_float=parse_float)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _refuse(digits[:32])


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
