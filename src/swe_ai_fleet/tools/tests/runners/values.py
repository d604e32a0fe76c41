"""JSON and TOML that a repository or a runner wrote, read without believing that they have any particular shape."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import cast


def parsed(text: str | bytes) -> object:
    """The value that a JSON text stands for; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_object(text: str | bytes) -> Mapping[str, object]:
    """A JSON object, empty where the text is none."""
    return mapping(parsed(text))


def toml(text: str) -> Mapping[str, object]:
    """A TOML document, empty where it cannot be parsed."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def mapping(value: object) -> Mapping[str, object]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def mappings(value: object) -> list[Mapping[str, object]]:
    """The objects in the value if it is a list, else none."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]


def string(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""
