"""Messages of the contract as people and programs read them: enumerations as words, whole messages as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from swe_ai_fleet.cli.exits import CommandFault, Exit


def enum_word(kind: Any, number: int) -> str:
    """A value of an enumeration, such as `pb.Role`, as the command line writes it: `in_progress`; empty for none."""
    return _word(kind.DESCRIPTOR, number)


def enum_name(kind: Any, word: str, *, field: str) -> str:
    """The name of the enumeration's value that a word says, that of none for no word. Raises CommandFault."""
    names = [str(name) for name, _ in kind.items()]
    if not word:
        return names[0]
    prefix = _prefix(kind.DESCRIPTOR)
    name = f"{prefix}{word.strip().upper().replace('-', '_')}"
    if name not in names[1:]:
        words = ", ".join(one.removeprefix(prefix).lower() for one in names[1:])
        raise CommandFault(f"{word[:64]!r} is unknown", exit_code=Exit.USAGE, field=field, hint=f"one of {words}")
    return name


def document(message: Message) -> dict[str, object]:
    """A message as JSON: every field under its own name, enumerations as words, what is not there left out."""
    found: dict[str, object] = {}
    for field in cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields):
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = dict(value)
        elif field.is_repeated:
            found[field.name] = [_plain(field, one) for one in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _plain(field, value)
    return found


def _plain(field: FieldDescriptor, value: Any) -> object:
    if isinstance(value, Message):
        return document(value)
    return value if field.enum_type is None else _word(field.enum_type, value)


def _word(kind: EnumDescriptor, number: int) -> str:
    if not number:
        return ""
    # A newer server may have values of which this version knows no name.
    known = kind.values_by_number.get(number)
    return str(number) if known is None else known.name.removeprefix(_prefix(kind)).lower()


def _prefix(kind: EnumDescriptor) -> str:
    """What the names of an enumeration's values begin with: `DELIBERATION_STATUS_`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.name).upper() + "_"
