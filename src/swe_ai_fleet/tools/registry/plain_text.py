"""What a tool returned, as plain text for a reader and as JSON for a program."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from typing import cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from swe_ai_fleet.domain.tool import Outcome, ToolResult

_MAX_DEPTH = 8
_ERROR = "Error: "


def presented(operation: str, value: object) -> ToolResult:
    """Any value as the result of a call.

    None and what is empty are named as such. A dict with a text under `error` says that the call failed.
    """
    if isinstance(value, ToolResult):
        return value
    plain = jsonable(value)
    fields = cast("dict[str, object]", plain) if isinstance(plain, dict) else None
    metadata: dict[str, object] = {"value": cast("object", plain)} if fields is None else fields
    error = None if fields is None else fields.get("error")
    if isinstance(error, str) and error:
        rest = {name: part for name, part in metadata.items() if name != "error" and part not in (None, "")}
        return ToolResult(
            success=False,
            operation=operation,
            content=as_text(rest) if rest else "",
            error=error.removeprefix(_ERROR),
            outcome=Outcome.ERROR,
            metadata=metadata,
        )
    content = _named(operation, metadata["value"] if fields is None else fields)
    return ToolResult(success=True, operation=operation, content=content, metadata=metadata)


def jsonable(value: object) -> object:
    """The value in JSON's types: models and dataclasses as objects, sets and tuples as arrays, the rest as text."""
    try:
        return _finite(to_jsonable_python(value, by_alias=True, bytes_mode="base64", serialize_unknown=True))
    except (PydanticSerializationError, ValueError, RecursionError):
        return repr(value)


def lacking(value: object) -> str:
    """What a tool returned instead of something, in words; empty where it did return something, as 0 and False are."""
    if value is None:
        return "nothing (None)"
    if isinstance(value, str | bytes) and not value.strip():
        return "an empty text"
    if isinstance(value, list | tuple | Set | Mapping) and not cast("Collection[object]", value):
        return f"an empty {'object' if isinstance(value, Mapping) else 'list'}"
    return ""


def as_text(value: object) -> str:
    """A JSON value as lines of `key: value` and `- item`; strings stand as they are, nothing is escaped."""
    return "\n".join(_lines(value, 0))


def _finite(value: object) -> object:
    """The value with text for the numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_finite(part) for part in cast("list[object]", value)]
    return value


def _named(operation: str, value: object) -> str:
    lack = lacking(value)
    return f"{operation} returned {lack}." if lack else as_text(value)


def _lines(value: object, depth: int) -> list[str]:
    if isinstance(value, str):
        return value.split("\n")
    if value == [] or value == {}:
        return ["(empty)"]
    lines: list[str] = []
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        for name, part in cast("Mapping[object, object]", value).items():
            lines += _entry(f"{name}:", part, depth)
    elif depth < _MAX_DEPTH and isinstance(value, list):
        for part in cast("list[object]", value):
            first, *rest = _lines(part, depth + 1)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
    else:
        lines.append(str(value))
    return lines


def _entry(name: str, value: object, depth: int) -> list[str]:
    below = _lines(value, depth + 1)
    if len(below) == 1 and (not isinstance(value, list | dict) or not value):
        return [f"{name} {below[0]}".rstrip()]
    # A text keeps its own indentation: it may be code.
    margin = "" if isinstance(value, str) and not depth else "  "
    return [name, *(f"{margin}{line}" for line in below)]
