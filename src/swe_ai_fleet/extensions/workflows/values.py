"""JSON as runs keep it: exact, bounded, and the same after a resumption."""

from __future__ import annotations

import json
from collections.abc import Mapping

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import parse_json, parsed
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.workflow import JsonValue, Workflow, json_type

MAX_VALUE_CHARS = 4_000_000
MAX_SHOWN_CHARS = 200_000
INPUT_TYPES = ("string", "number", "integer", "boolean", "array", "object")


def exact_json(value: JsonValue, what: str) -> str:
    """A value as JSON text. Raises InvalidRequest saying that `what` is no JSON, or too long."""
    try:
        text = parsed(json.dumps, value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error!s:.200}", field=what) from error
    if len(text) > MAX_VALUE_CHARS:
        raise InvalidRequest(
            f"{what} has {len(text)} characters as JSON, at most {MAX_VALUE_CHARS} are kept", field=what
        )
    return well_formed(text)


def shown_json(value: JsonValue) -> str:
    """Inputs as they are shown to people: in a log they would stand many times, so long ones are left out."""
    text = exact_json(value, "inputs")
    return text if len(text) <= MAX_SHOWN_CHARS else json.dumps({"left_out": f"{len(text)} characters of JSON"})


def parsed_json(text: str, what: str) -> JsonValue:
    """The value that `exact_json` wrote. Raises InvalidRequest where it did not."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error!s:.200}", field=what) from error


def fits(value: JsonValue, kind: str) -> bool:
    """Whether a value is of a JSON schema type; 2.0 is an integer too, as JSON schema has it."""
    match kind:
        case "number":
            return json_type(value) in ("integer", "number")
        case "integer":
            return json_type(value) == "integer" or (isinstance(value, float) and value.is_integer())
        case _:
            return json_type(value) == kind


def checked_inputs(workflow: Workflow, given: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The inputs of a run, defaults put in.

    Raises:
        InvalidRequest: One is missing, unknown or of another type; `field` is `inputs.NAME`.
    """
    declared = {spec.name: spec for spec in workflow.inputs}
    for name in given:
        if name not in declared:
            names = ", ".join(declared) or "none"
            raise InvalidRequest(f"there is no input {name!r:.80}", field=f"inputs.{name:.80}", hint=f"inputs: {names}")
    inputs: dict[str, JsonValue] = {}
    for name, spec in declared.items():
        value = given.get(name)
        if value is None:
            if spec.required and spec.default is None:
                raise InvalidRequest(f"the input {name!r} is missing", field=f"inputs.{name}", hint=spec.description)
            inputs[name] = spec.default
            continue
        if not fits(value, spec.type):
            raise InvalidRequest(
                f"the input {name!r} must be of type {spec.type}, not {json_type(value)}", field=f"inputs.{name}"
            )
        inputs[name] = value
    return parsed_json(exact_json(inputs, "inputs"), "inputs")
