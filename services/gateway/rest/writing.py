"""Messages as JSON: proto3's mapping with the contract's own names, and 64-bit integers as numbers."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from swe_ai_fleet.contract import descriptor_of

LARGE_BYTES = 256 * 1024
"""Messages beyond this are written beside the loop."""

_Convert = Callable[[Any], object]
_REALS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def serialized(message: Message) -> bytes:
    """The JSON of a message, in UTF-8."""
    return json.dumps(as_json(message), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


async def written_aside(message: Message) -> bytes:
    """As `written`, without holding the loop up for a large one."""
    return serialized(message) if message.ByteSize() < LARGE_BYTES else await asyncio.to_thread(serialized, message)


def as_json(message: Message) -> dict[str, object]:
    """A message as `json` writes it. Defaults are there; absent messages and unset optional fields are not."""
    fields: dict[str, object] = {}
    for name, optional, convert in _plan(descriptor_of(message)):
        if optional and not message.HasField(cast("Any", name)):
            continue
        value: object = getattr(message, name)
        fields[name] = value if convert is None else convert(value)
    return fields


@cache
def _plan(kind: Descriptor) -> tuple[tuple[str, bool, _Convert | None], ...]:
    return tuple((field.name, field.has_presence, _convert(field)) for field in kind.fields)


def _convert(field: FieldDescriptor) -> _Convert | None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = _converter(kind.fields_by_name["value"])
        if inner is None:
            return lambda entries: {str(key): item for key, item in entries.items()}
        return lambda entries: {str(key): inner(item) for key, item in entries.items()}
    convert = _converter(field)
    if not field.is_repeated:
        return convert
    return list if convert is None else lambda several: [convert(each) for each in several]


def _converter(field: FieldDescriptor) -> _Convert | None:
    """How one value is written; None: as it is."""
    if field.message_type is not None:
        return json_format.MessageToDict if field.message_type.full_name.startswith("google.protobuf.") else as_json
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, number)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda data: base64.b64encode(data).decode()
    return _real if field.cpp_type in _REALS else None


def _real(value: float) -> object:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
