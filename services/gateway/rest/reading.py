"""Fills messages from the JSON bodies, paths and queries of requests.

A value that does not fit its field is refused with the path of the field, such as `options.roles[2]`.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NoReturn, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from swe_ai_fleet.contract import descriptor_of
from swe_ai_fleet.domain import json_values
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_list, is_object, mapping

_NAME_CHARS = 64
_HINT_CHARS = 300
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?")
RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_REALS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def scalar(field: FieldDescriptor, value: object, where: str) -> object:
    """A JSON value converted for a field. Raises InvalidRequest, naming `where`."""
    kind = field.cpp_type
    if kind in RANGES:
        return _integer(value, where, *RANGES[kind])
    if kind in _REALS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest(f"{where} must be a number", field=where)
        return finite(value, where)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{where} must be true or false", field=where)
        return value
    if not isinstance(value, str):
        raise InvalidRequest(f"{where} must be a string", field=where)
    if field.enum_type is not None:
        names = _names(field.enum_type)
        if value not in names:
            hint = f"one of {', '.join(names)}"[:_HINT_CHARS]
            raise InvalidRequest(f"{where} is not a known value", field=where, hint=hint)
        return names[value]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(value, where)
    return checked_text(value, where)


def from_text(field: FieldDescriptor, text: str, where: str) -> object:
    """A text from a path or a query converted for a field. Raises InvalidRequest, naming `where`."""
    kind = field.cpp_type
    if kind in RANGES:
        return _integer(int(text) if _INTEGER.fullmatch(text) else text, where, *RANGES[kind])
    if kind in _REALS:
        if not _NUMBER.fullmatch(text):
            raise InvalidRequest(f"{where} must be a number", field=where)
        return finite(float(text), where)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        if text not in ("true", "false"):
            raise InvalidRequest(f"{where} must be true or false", field=where)
        return text == "true"
    return scalar(field, text, where)


def _integer(value: object, where: str, least: int, most: int) -> int:
    # JSON has one kind of number, so 3.0 is accepted for an integer.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{where} must be an integer", field=where)
    if not least <= value <= most:
        raise InvalidRequest(f"{where} is out of range", field=where, hint=f"{least} to {most}")
    return value


def finite(value: float, where: str) -> float:
    """The number as a finite double. Raises InvalidRequest."""
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise InvalidRequest(f"{where} is out of range", field=where)
    return real


def _bytes(value: str, where: str) -> bytes:
    try:
        data = value.encode("ascii").replace(b"-", b"+").replace(b"_", b"/").rstrip(b"=")
        return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise InvalidRequest(f"{where} must be base64", field=where) from None


def checked_text(value: str, where: str) -> str:
    """The text, if it can be encoded in UTF-8. Raises InvalidRequest."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{where} contains an incomplete character", field=where, hint="a surrogate needs its other half"
        ) from None
    return value


def shown(name: str) -> str:
    """A name from a client, shortened and safe to print."""
    if not name:
        return '""'
    short = name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}…"
    return short.encode("utf-8", "replace").decode()


# protobuf's own lookups by name fail on text that is not valid Unicode.
@cache
def _names(kind: EnumDescriptor) -> Mapping[str, int]:
    return {value.name: value.number for value in kind.values}


@cache
def _fields(kind: Descriptor) -> Mapping[str, FieldDescriptor]:
    return {field.name: field for field in kind.fields}


MAX_DEPTH = 24
"""Levels of free-form JSON in a request. Each takes three levels of protobuf, which allows 100."""
_FREE_FORM = "google.protobuf."


def parsed(data: bytes) -> dict[str, object]:
    """The JSON object in a body; an empty body is an empty object.

    Raises:
        InvalidRequest: It is not JSON (the message says where), not an object, or has a member twice.
    """
    if not data.strip():
        return {}
    try:
        value: object = json_values.parsed(_DECODER.decode, data.decode())
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}", field="body"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8 at byte {error.start}", field="body") from None
    except ValueError as error:
        # Besides deep nesting only a number with thousands of digits raises it.
        fault = "is nested too deeply" if "nested" in str(error) else "contains a number that is too long"
        raise InvalidRequest(f"the body {fault}", field="body") from None
    if not is_object(value):
        raise InvalidRequest("the body must be a JSON object", field="body", hint="such as {}")
    return value


def fill(message: Message, values: Mapping[str, object], path: str = "") -> None:
    """Set fields of a message from a JSON object; null leaves a field unset.

    Raises:
        InvalidRequest: Naming the field: unknown, of another type, out of range, or a second one of a oneof.
    """
    fields = _fields(descriptor_of(message))
    for name, value in values.items():
        where = _join(path, name)
        field = fields.get(name)
        if field is None:
            _unknown(message, where)
        if value is not None:
            _check_oneof(message, field, where)
            _set(message, field, value, where)


def fill_text(message: Message, values: Iterable[tuple[str, str]], *, given: Iterable[str] = ()) -> None:
    """Set fields of a message from the names and texts of a query; dots lead into nested messages.

    Args:
        values: Names with their values; the name of a list is repeated for each value.
        given: Names that have a value already.

    Raises:
        InvalidRequest: Naming the field: unknown, given twice, of another type, or out of range.
    """
    seen = set(given)
    for name, text in values:
        target, field = _target(message, name)
        if field.is_repeated:
            getattr(target, field.name).append(from_text(field, text, name))
            continue
        if name in seen:
            raise InvalidRequest(f"{name} is given twice", field=name)
        seen.add(name)
        _check_oneof(target, field, name)
        setattr(target, field.name, from_text(field, text, name))


def fill_path(message: Message, values: Mapping[str, str], body: Mapping[str, object]) -> None:
    """Set the fields that a path names; the body may repeat them with the same value.

    Raises:
        InvalidRequest: Naming the field.
    """
    for name, text in values.items():
        target, field = _target(message, name)
        value = from_text(field, text, name)
        *parents, last = name.split(".")
        if mapping(body, *parents).get(last) is not None and getattr(target, field.name) != value:
            raise InvalidRequest(
                f"{name} differs from the one in the path", field=name, hint="leave it out of the body"
            )
        setattr(target, field.name, value)


def _target(message: Message, name: str) -> tuple[Message, FieldDescriptor]:
    *parents, last = name.split(".")
    target = message
    for part in parents:
        inner = _fields(descriptor_of(target)).get(part)
        if inner is None or inner.message_type is None or inner.is_repeated:
            _unknown(message, shown(name))
        target = cast("Message", getattr(target, part))
    field = _fields(descriptor_of(target)).get(last)
    if field is None or field.message_type is not None:
        _unknown(message, shown(name))
    return target, field


def _set(message: Message, field: FieldDescriptor, value: object, where: str) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _set_map(getattr(message, field.name), field, value, where)
    elif field.is_repeated:
        if not is_list(value):
            raise InvalidRequest(f"{where} must be a list", field=where)
        several: Any = getattr(message, field.name)
        for number, element in enumerate(value):
            place = f"{where}[{number}]"
            if field.message_type is not None:
                _set_message(several.add(), element, place)
            else:
                several.append(scalar(field, element, place))
    elif field.message_type is not None:
        inner = cast("Message", getattr(message, field.name))
        inner.SetInParent()
        _set_message(inner, value, where)
    else:
        setattr(message, field.name, scalar(field, value, where))


def _set_map(entries: Any, field: FieldDescriptor, value: object, where: str) -> None:
    if not is_object(value):
        raise InvalidRequest(f"{where} must be an object", field=where)
    kinds = cast("Any", field.message_type).fields_by_name
    for key, element in value.items():
        place = f"{where}[{shown(key)}]"
        name = from_text(kinds["key"], key, place)
        if kinds["value"].message_type is not None:
            _set_message(entries[name], element, place)
        else:
            entries[name] = scalar(kinds["value"], element, place)


def _set_message(message: Message, value: object, where: str) -> None:
    if message.DESCRIPTOR.full_name.startswith(_FREE_FORM):
        _check_free_form(value, where, MAX_DEPTH)
        try:
            json_format.ParseDict(cast("Any", value), message)
        except (json_format.ParseError, ValueError, OverflowError):
            raise InvalidRequest(f"{where} is no {message.DESCRIPTOR.name.lower()}", field=where) from None
    elif is_object(value):
        fill(message, value, where)
    else:
        raise InvalidRequest(f"{where} must be an object", field=where)


def _check_free_form(value: object, where: str, levels: int) -> None:
    if levels < 0:
        raise InvalidRequest(f"{where} is nested too deeply", field=where, hint=f"at most {MAX_DEPTH} levels")
    if is_object(value):
        for key, element in value.items():
            checked_text(key, where)
            _check_free_form(element, where, levels - 1)
    elif is_list(value):
        for element in value:
            _check_free_form(element, where, levels - 1)
    elif isinstance(value, str):
        checked_text(value, where)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        finite(value, where)


def _check_oneof(message: Message, field: FieldDescriptor, where: str) -> None:
    choice = field.containing_oneof
    other = message.WhichOneof(choice.name) if choice is not None else None
    if other is not None and other != field.name:
        raise InvalidRequest(f"{where} and {other} exclude each other", field=where)


def _unknown(message: Message, where: str) -> NoReturn:
    fields = ", ".join(message.DESCRIPTOR.fields_by_name)
    raise InvalidRequest(
        f"{where} is not a field of this message", field=where, hint=f"one of {fields}"[:_HINT_CHARS] if fields else ""
    )


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names: set[str] = set()
        twice = next(name for name, _ in pairs if name in names or names.add(name))
        raise InvalidRequest(f"{shown(twice)} is given twice", field=shown(twice))
    return members


def _refuse_constant(word: str) -> NoReturn:
    raise InvalidRequest(f"the body is not JSON: {word} is not a JSON number", field="body")


def _join(path: str, name: str) -> str:
    return f"{path}.{shown(name)}" if path else shown(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)
