"""Single values: what JSON, paths and queries have where a message has a scalar."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from typing import cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from swe_ai_fleet.domain.errors import InvalidRequest

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
# protobuf's own tables of names fail on text that is no Unicode.
_known_names: dict[str, Mapping[str, int]] = {}


def scalar(field: FieldDescriptor, value: object, where: str) -> object:
    """A JSON value as a field takes it. Raises InvalidRequest, naming `where`."""
    kind = field.cpp_type
    if kind in RANGES:
        return _integer(value, where, *RANGES[kind])
    if kind in _REALS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest(f"{where} is no number", field=where)
        return finite(value, where)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{where} is neither true nor false", field=where)
        return value
    if not isinstance(value, str):
        raise InvalidRequest(f"{where} is no text", field=where)
    if field.enum_type is not None:
        return _enum(field, value, where)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(value, where)
    return checked_text(value, where)


def from_text(field: FieldDescriptor, text: str, where: str) -> object:
    """A text from a path or a query as a field takes it. Raises InvalidRequest, naming `where`."""
    kind = field.cpp_type
    if kind in RANGES:
        return _integer(int(text) if _INTEGER.fullmatch(text) else text, where, *RANGES[kind])
    if kind in _REALS:
        if not _NUMBER.fullmatch(text):
            raise InvalidRequest(f"{where} is no number", field=where)
        return finite(float(text), where)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        if text not in ("true", "false"):
            raise InvalidRequest(f"{where} is neither true nor false", field=where)
        return text == "true"
    return scalar(field, text, where)


def _integer(value: object, where: str, least: int, most: int) -> int:
    # JSON knows one kind of number: 3.0 is a whole one.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{where} is no whole number", field=where)
    if not least <= value <= most:
        raise InvalidRequest(f"{where} is out of range", field=where, hint=f"{least} to {most}")
    return value


def finite(value: float, where: str) -> float:
    """A number that a double can hold. Raises InvalidRequest."""
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise InvalidRequest(f"{where} is out of range", field=where)
    return real


def _enum(field: FieldDescriptor, value: str, where: str) -> int:
    known = _names(cast("EnumDescriptor", field.enum_type))
    if value not in known:
        hint = f"one of {', '.join(known)}"[:_HINT_CHARS]
        raise InvalidRequest(f"{where} is none of its names", field=where, hint=hint)
    return known[value]


def _bytes(value: str, where: str) -> bytes:
    try:
        data = value.encode("ascii").replace(b"-", b"+").replace(b"_", b"/").rstrip(b"=")
        return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise InvalidRequest(f"{where} is no base64", field=where) from None


def checked_text(value: str, where: str) -> str:
    """A text that UTF-8 can hold. Raises InvalidRequest."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{where} has half a character", field=where, hint="a surrogate needs its pair") from None
    return value


def shown(name: str) -> str:
    """A name of a stranger's, short and fit to be printed."""
    if not name:
        return '""'
    short = name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}…"
    return short.encode("utf-8", "replace").decode()


def _names(kind: EnumDescriptor) -> Mapping[str, int]:
    known = _known_names.get(kind.full_name)
    if known is None:
        known = {value.name: value.number for value in kind.values}
        _known_names[kind.full_name] = known
    return known
