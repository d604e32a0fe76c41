"""How a server that holds replies to a JSON schema would have said what a script says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast


def schema_of(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema that a chat request wants its reply held to, if any."""
    wanted: dict[str, Any] = payload.get("response_format") or {}
    if wanted.get("type") != "json_schema":
        return None
    return cast("Mapping[str, Any]", wanted["json_schema"]["schema"])


def held_to(schema: Mapping[str, Any], content: str, calls: Sequence[tuple[str, str]]) -> str:
    """The reply as JSON: an envelope around calls, text that is JSON as it is, else the smallest value that fits.

    `calls` are (name, arguments as text); arguments that are no JSON travel as a string.
    """
    if "tool_calls" in (schema.get("properties") or {}):
        listed = [{"name": name, "arguments": _value(arguments)} for name, arguments in calls]
        return json.dumps({"thought": content, "tool_calls": listed})
    try:
        json.loads(content)
    except ValueError:
        return json.dumps(_smallest(schema))
    return content


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _smallest(schema: Mapping[str, Any]) -> object:
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return _smallest(schema[choice][0])
    kind = schema.get("type", "object")
    if kind == "object":
        properties: Mapping[str, Any] = schema.get("properties") or {}
        return {name: _smallest(properties.get(name, {})) for name in schema.get("required") or ()}
    if kind == "array":
        return [_smallest(schema.get("items") or {})] * int(schema.get("minItems", 0))
    return {"string": "", "boolean": True, "integer": 0, "number": 0}.get(kind)
