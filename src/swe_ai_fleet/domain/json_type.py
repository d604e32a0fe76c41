"""The types of JSON values, by the names that JSON schemas have for them."""

from __future__ import annotations

from collections.abc import Mapping


def json_type(value: object) -> str:
    """The name of a value's type: `null`, `boolean`, `integer`, `number`, `string`, `array`, `object`.

    Anything that JSON does not have is `other`.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case Mapping():
            return "object"
        case _:
            return "other"
