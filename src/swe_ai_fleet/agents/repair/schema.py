"""What a JSON schema says about a value, as far as it takes to see what a model meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from swe_ai_fleet.domain.tool import OperationSpec

Schema = Mapping[str, object]

_MOST_CHOICES = 64


def choices_of(schema: Schema, root: Schema) -> list[Schema]:
    """The alternatives of a schema, its references followed; of a boundless one, the first."""
    waiting, found = [schema], list[Schema]()
    for _ in range(_MOST_CHOICES):
        if not waiting:
            break
        one = waiting.pop(0)
        reference = one.get("$ref")
        if isinstance(reference, str):
            target = _mapping(root.get("$defs")).get(reference.removeprefix("#/$defs/"))
            waiting.append(cast("Schema", target) if isinstance(target, Mapping) else {})
            continue
        parts = one.get("anyOf", one.get("oneOf"))
        kind = one.get("type")
        if isinstance(parts, list):
            waiting += [cast("Schema", part) for part in cast("list[object]", parts) if isinstance(part, Mapping)]
        elif isinstance(kind, list):
            found += [{**one, "type": each} for each in cast("list[object]", kind)]
        else:
            found.append(one)
    return found or [{}]


def types_of(schema: Schema, root: Schema) -> set[str]:
    """The names of the types that a value may have; `any` where the schema does not say."""
    return {str(choice.get("type", "any")) for choice in choices_of(schema, root)}


def enum_of(choices: Sequence[Schema]) -> list[object]:
    """The values that alternatives list; empty where they list none."""
    listed = [choice.get("enum") for choice in choices]
    return [one for values in listed if isinstance(values, list) for one in cast("list[object]", values)]


def properties_of(schema: Schema) -> Mapping[str, Schema]:
    """The schemas of the fields that a schema names."""
    given = _mapping(schema.get("properties"))
    return {name: cast("Schema", part) for name, part in given.items() if isinstance(part, Mapping)}


def is_open(schema: Schema) -> bool:
    """Whether an object of the schema may have fields that it does not name: then every name can be meant."""
    return schema.get("additionalProperties", False) is not False


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def complete(fields: Mapping[str, object], spec: OperationSpec) -> bool:
    """Whether the operation has all these parameters and is given all that it needs."""
    required = cast("Sequence[str]", spec.parameters.get("required", ()))
    return fields.keys() <= properties_of(spec.parameters).keys() and fields.keys() >= set(required)


def sole_string(spec: OperationSpec) -> str:
    """The one parameter that the operation needs, if that is a string; else empty."""
    properties = properties_of(spec.parameters)
    required = cast("Sequence[str]", spec.parameters.get("required", ()))
    names = tuple(required) or tuple(properties)
    if len(names) != 1 or names[0] not in properties:
        return ""
    return names[0] if "string" in types_of(properties[names[0]], spec.parameters) else ""
