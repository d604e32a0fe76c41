"""Reads HTTP requests into the messages of their RPCs, and writes messages as JSON.

The JSON is proto3's mapping with the field names of the .proto files, and 64-bit integers as numbers.
"""

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
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request

from services.gateway.problems import Refusal
from services.gateway.rest.reading import fill, fill_path, fill_text, parsed
from services.gateway.rest.table import Operation
from services.grpc_server import MAX_REQUEST_BYTES
from swe_ai_fleet.contract import descriptor_of
from swe_ai_fleet.domain.errors import InvalidRequest

LARGE_BYTES = 256 * 1024
"""Larger messages are converted in a thread."""

_Convert = Callable[[Any], object]
_REALS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def _serialized(message: Message) -> bytes:
    """The JSON of a message, in UTF-8."""
    return json.dumps(as_json(message), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


async def message_json(message: Message) -> bytes:
    """The JSON of a message, in UTF-8; a large one is written in a thread, so that it does not block the loop."""
    return _serialized(message) if message.ByteSize() < LARGE_BYTES else await asyncio.to_thread(_serialized, message)


def as_json(message: Message) -> dict[str, object]:
    """A message as a JSON object. Default values are included; absent messages and unset optional fields are not."""
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
    """Converts one value of a field to JSON; None: it needs no conversion."""
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


_JSON = "application/json"


async def read_message(request: Request, operation: Operation, *, own: frozenset[str] = frozenset()) -> Message:
    """The request message from the path, the query and the body.

    Args:
        own: Query parameters that are not fields of the message.

    Raises:
        InvalidRequest: Naming the field.
        Refusal: 413 or 415.
    """
    message = GetMessageClass(operation.method.input_type)()
    query = [(name, text) for name, text in request.query_params.multi_items() if name not in own]
    named = {field: request.path_params[name] for name, field in operation.parameters.items()}
    if operation.has_body:
        # The auth middleware limits its size.
        data = await request.body()
        if data:
            _check_media_type(request)
        if len(data) < LARGE_BYTES:
            _fill(message, data, named)
        else:
            await asyncio.to_thread(_fill, message, data, named)
        if query:
            name = query[0][0][:64]
            raise InvalidRequest(
                f"{name} is not a query parameter of this method", field=name, hint="send it in the body"
            )
    else:
        fill_path(message, named, {})
        fill_text(message, query, given=named)
    if message.ByteSize() > MAX_REQUEST_BYTES:
        raise Refusal(413, "the request is too large", field="body", hint=f"at most {MAX_REQUEST_BYTES} bytes")
    return message


def _fill(message: Message, data: bytes, named: dict[str, str]) -> None:
    values = parsed(data)
    fill(message, values)
    fill_path(message, named, values)


def _check_media_type(request: Request) -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != _JSON or charset not in ("", "utf-8"):
        raise Refusal(415, "the body must be JSON", field="content-type", hint=f"send Content-Type: {_JSON}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "the body must not be compressed", field="content-encoding", hint="send it uncompressed")
