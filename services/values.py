"""What no field of any request may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from swe_ai_fleet.domain.errors import InvalidRequest

MAX_ENTRIES = 10_000
"""Of one field; what it really takes is mostly much less."""


def check_values(message: Message, path: str = "") -> None:
    """Refuse what no field of any request may hold: negative numbers, unknown enum values, NUL characters, a flood."""
    for field, value in message.ListFields():
        name = f"{path}.{field.name}" if path else field.name
        if field.is_repeated and len(value) > MAX_ENTRIES:
            # Before each is looked at: a million of them fit a request, and would keep the server for a second.
            raise InvalidRequest(f"{name} has {len(value)} entries", field=name, hint=f"at most {MAX_ENTRIES}")
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            for key, one in cast("Mapping[object, object]", value).items():
                _check_value(field.message_type.fields_by_name["key"], key, name)
                _check_value(inner, one, f"{name}[{key}]")
        elif field.is_repeated:
            for number, one in enumerate(cast("list[object]", value)):
                _check_value(field, one, f"{name}[{number}]")
        else:
            _check_value(field, value, name)


def _check_value(field: FieldDescriptor, value: object, name: str) -> None:
    if isinstance(value, Message):
        check_values(value, name)
    elif isinstance(value, str) and "\0" in value:
        raise InvalidRequest(f"{name} has a NUL character", field=name)
    elif field.enum_type is not None and value not in field.enum_type.values_by_number:
        known = ", ".join(field.enum_type.values_by_name)
        raise InvalidRequest(f"{name} has the unknown value {value}", field=name, hint=f"one of {known}")
    elif isinstance(value, int) and value < 0:
        raise InvalidRequest(f"{name} is {value}", field=name, hint="0 for the default, or a positive number")
