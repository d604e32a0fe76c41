"""JSON that others wrote: parsed in one place, and read without believing that it has a particular shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import isfinite
from typing import NoReturn, cast

MOST_DEPTH = 100
"""So many levels of lists and objects are gone through: what is deeper would use up the stack of whoever reads it."""


def parse_json(text: str | bytes, *, control_characters: bool = False, finite: bool = False) -> object:
    """The value that a JSON text stands for.

    Args:
        control_characters: Texts may hold line ends and tabs as they are, as models write them.
        finite: NaN, Infinity and numbers that are too large for a float are refused.

    Raises:
        ValueError: The text is no JSON, no UTF-8, or nested too deeply.
    """
    refused = _refuse if finite else None
    try:
        return json.loads(
            text, strict=not control_characters, parse_constant=refused, parse_float=_finite if finite else None
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_or_none(text: str | bytes, *, finite: bool = False) -> object:
    """The value that a JSON text stands for; None where it is none."""
    try:
        return parse_json(text, finite=finite)
    except ValueError:
        return None


def json_object(text: str | bytes, *, finite: bool = False) -> Mapping[str, object]:
    """The JSON object that a text stands for, empty where it is none."""
    return mapping(json_or_none(text, finite=finite))


def mapping(value: object, *names: str) -> Mapping[str, object]:
    """The value if it is an object, or the object that the names lead to from there; empty where there is none."""
    members = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    return mapping(members.get(names[0]), *names[1:]) if names else members


def mappings(value: object) -> list[Mapping[str, object]]:
    """The objects in the value if it is a list, else none."""
    return [mapping(cast("object", item)) for item in items(value) if isinstance(item, dict)]


def items(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def integer(value: object) -> int:
    """The value if it is a whole number, else 0."""
    return value if isinstance(value, int) else 0


def string(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def strings(value: object) -> list[str]:
    """The strings in the value if it is a list, the value itself if it is one, else none."""
    if isinstance(value, str):
        return [value]
    return [item for item in items(value) if isinstance(item, str)]


def with_texts(value: object, change: Callable[[str], str], *, depth: int = MOST_DEPTH) -> object:
    """The value with each text in it changed, those that name fields included. Raises ValueError if it is too deep."""
    if isinstance(value, str):
        return change(value)
    if not depth:
        raise ValueError("nested too deeply")
    if isinstance(value, Mapping):
        fields = cast("Mapping[object, object]", value).items()
        return {change(str(name)): with_texts(part, change, depth=depth - 1) for name, part in fields}
    if isinstance(value, list | tuple):
        return [with_texts(part, change, depth=depth - 1) for part in cast("list[object]", value)]
    return value


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _refuse(digits)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
