"""Checks of the values in requests: general ones, and the bounds of each field in the contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from fleet.options.v1 import options_pb2
from swe_ai_fleet.contract import descriptor_of
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import parsed
from swe_ai_fleet.domain.text import MAX_MS, check_length

if TYPE_CHECKING:
    from fleet.options.v1.options_pb2 import Bounds

MAX_ENTRIES = 10_000
"""The most entries of a field without a bound of its own."""
_KEY_CHARS = 64
"""Of a map's key in the name of a field: names get longer with each map in a map."""
_NONE = options_pb2.Bounds(max_items=MAX_ENTRIES)


M = TypeVar("M", bound=Message)


def parsed_message(data: bytes, message: M) -> M:
    """The message, filled from its JSON and checked. Raises InvalidRequest."""
    try:
        parsed(json_format.Parse, data, message, max_recursion_depth=64)
    except (json_format.ParseError, ValueError) as fault:
        kind = message.DESCRIPTOR.name
        raise InvalidRequest(f"the message is not valid JSON for a {kind}: {fault}"[:1000], field="message") from None
    check_values(message)
    return message


@cache
def bounds_of(field: FieldDescriptor) -> Bounds | None:
    """The bounds of a field in the contract; None where it has none."""
    # The stubs know extensions by a type of their own.
    options, extension = cast("Any", field.GetOptions()), options_pb2.bounds
    return cast("Bounds", options.Extensions[extension]) if options.HasExtension(extension) else None


@cache
def _required(message: Descriptor) -> list[FieldDescriptor]:
    return [field for field in message.fields if (bounds := bounds_of(field)) is not None and bounds.required]


def check_values(message: Message, path: str = "") -> None:
    """Refuse what the contract does not allow.

    No field may hold a negative number, a value that its enum does not have, a NUL character or a flood of entries.

    Raises:
        InvalidRequest: The first such value, its field named from the request down.
    """
    for field, value in message.ListFields():
        name, bounds = _below(path, field.name), bounds_of(field) or _NONE
        if field.is_repeated:
            most = bounds.max_items if bounds.HasField("max_items") else MAX_ENTRIES
            if len(value) > most:
                # Before each entry is checked: a million of them fit a request, and would take the server a second.
                raise InvalidRequest(f"{name} has {len(value)} entries", field=name, hint=f"at most {most}")
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            keys, inner = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for key, entry in cast("Mapping[object, object]", value).items():
                _check_value(keys, key, name, bounds)
                _check_value(inner, entry, f"{name}[{str(key)[:_KEY_CHARS]}]", bounds)
        elif field.is_repeated:
            for number, entry in enumerate(cast("list[object]", value)):
                _check_value(field, entry, f"{name}[{number}]", bounds)
        else:
            _check_value(field, value, name, bounds)
    for field in _required(descriptor_of(message)):
        if not getattr(message, field.name):
            raise InvalidRequest(f"no {field.name} given", field=_below(path, field.name))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _check_value(field: FieldDescriptor, value: object, name: str, bounds: Bounds) -> None:
    match value:
        case Message():
            check_values(value, name)
        case str():
            _check_text(value, name, bounds)
        case bool() | bytes():
            return
        case int() | float() if field.enum_type is None:
            _check_number(field, value, name, bounds)
        case _ if field.enum_type is not None and value not in field.enum_type.values_by_number:
            names = ", ".join(field.enum_type.values_by_name)
            raise InvalidRequest(f"{name} has the unknown value {value}", field=name, hint=f"one of {names}")
        case _:
            return


def _check_text(text: str, name: str, bounds: Bounds) -> None:
    if "\0" in text:
        raise InvalidRequest(f"{name} has a NUL character", field=name)
    if bounds.HasField("max_chars"):
        check_length(text, bounds.max_chars, field=name)
    if bounds.HasField("pattern") and not re.fullmatch(bounds.pattern, text):
        raise InvalidRequest(f"{text[:64]!r} is not {bounds.form}", field=name)


def _check_number(field: FieldDescriptor, number: float, name: str, bounds: Bounds) -> None:
    whole = field.cpp_type not in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
    usual = "the default" if whole else "no limit"
    if whole and number < 0:
        raise InvalidRequest(f"{name} is {number}", field=name, hint="0 for the default, or a positive number")
    if bounds.HasField("max") and not number <= bounds.max:
        raise InvalidRequest(f"{name} is {number:g}", field=name, hint=f"at most {bounds.max:g}; 0 for {usual}")
    if bounds.HasField("min") and number < bounds.min:
        raise InvalidRequest(f"{name} is {number:g}", field=name, hint=f"at least {bounds.min:g}")
    if bounds.HasField("max") and not whole and number < 0:
        raise InvalidRequest(f"{name} is {number:g}", field=name, hint="0 for no limit, or a positive number")
    if whole and field.name.endswith("_ms") and number > MAX_MS:
        raise InvalidRequest(f"{name} is {number}", field=name, hint="milliseconds since 1970")
