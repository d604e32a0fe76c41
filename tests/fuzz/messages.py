"""Protobuf messages that nobody thought of: made from a descriptor, or a good one gone wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

TEXTS: Sequence[str] = (
    "", " ", "x", "..", "../../etc/passwd", "/", "-rf", "--upload-pack=touch /tmp/x", "a" * 300, "b" * 70_000, "\x00",
    "\u202e\u0000\uffff", "\U0001d54f" * 80, "default", "*", ">", "agent.events.>", "a.b", "null", "{}", "[" * 500,
    "$JS.API.STREAM.DELETE.AGENT_EVENTS", "' OR 1=1 --", "${jndi:ldap://x}", "{{7*7}}", "%s%n", "\r\nX: y", "1" * 40,
    "00000000-0000-0000-0000-000000000000", "file:///etc/passwd", "http://169.254.169.254/", "ssh://-oProxyCommand=x/",
    "(a+)+$", "\ud7ff", "é", "e\u0301", "DEV", "fuzz", "NaN",
)  # fmt: skip
WHOLES: Sequence[int] = (0, 1, -1, 2, 7, 100, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
REALS: Sequence[float] = (0.0, -0.0, 1.0, -1.0, 0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
_DEPTH = 4
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def filled(message: Message, dice: random.Random, *, share: float, kept: Sequence[str] = (), depth: int = 0) -> Message:
    """The message with about `share` of its fields set to something; `kept` names fields that stay as they are."""
    for field in message.DESCRIPTOR.fields:
        if field.name in kept or dice.random() >= share:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _map(message, field, dice, depth)
        elif field.is_repeated:
            _many(message, field, dice, depth)
        elif field.message_type is not None:
            if depth < _DEPTH:
                filled(getattr(message, field.name), dice, share=share, depth=depth + 1)
        else:
            setattr(message, field.name, _scalar(field, dice))
    return message


def broken(data: bytes, dice: random.Random) -> bytes:
    """Bytes on the wire that are not quite a message any more."""
    spoilt = bytearray(data)
    match dice.randrange(5):
        case 0:
            for _ in range(min(len(spoilt), 3)):
                spoilt[dice.randrange(len(spoilt))] ^= 1 << dice.randrange(8)
        case 1:
            del spoilt[dice.randrange(len(spoilt) + 1) :]
        case 2:
            # A field that nobody knows, of each wire type there is and is not.
            spoilt += bytes([dice.randrange(256), dice.randrange(256)]) + dice.randbytes(dice.randrange(9))
        case 3:
            spoilt[:] = dice.randbytes(dice.randrange(1, 200))
        case _:
            # A length that promises more than there is.
            spoilt += b"\x0a\xff\xff\xff\x7f"
    return bytes(spoilt)


def _map(message: Message, field: FieldDescriptor, dice: random.Random, depth: int) -> None:
    entry = field.message_type
    assert entry is not None
    there, value = getattr(message, field.name), entry.fields_by_name["value"]
    for _ in range(dice.choice((1, 2, 70))):
        key = _scalar(entry.fields_by_name["key"], dice)
        if value.message_type is None:
            there[key] = _scalar(value, dice)
        elif depth < _DEPTH:
            filled(there[key], dice, share=0.3, depth=depth + 1)


def _many(message: Message, field: FieldDescriptor, dice: random.Random, depth: int) -> None:
    there: Any = getattr(message, field.name)
    for _ in range(dice.choice((1, 2, 3, 200))):
        if field.message_type is None:
            there.append(_scalar(field, dice))
        elif depth < _DEPTH:
            filled(there.add(), dice, share=0.3, depth=depth + 1)


def _scalar(field: FieldDescriptor, dice: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            text = dice.choice(TEXTS)
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return dice.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return dice.choice(REALS)
        case FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            return dice.choice([*(one.number for one in field.enum_type.values), 99, 2**31 - 1, -1])
        case kind:
            low, high = _RANGES[kind]
            return min(max(dice.choice(WHOLES), low), high)


def message_of(descriptor: Descriptor) -> Message:
    return GetMessageClass(descriptor)()
