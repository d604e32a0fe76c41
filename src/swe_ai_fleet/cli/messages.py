"""Messages of the contract on the command line: enumerations as words, everything else as JSON."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from datetime import datetime
from typing import Any, cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.screen import CommandFault
from swe_ai_fleet.domain.text import iso_time


def enum_word(kind: Any, number: int) -> str:
    """A value of an enumeration, such as `pb.Role`, as a word: `in_progress`; empty for the value 0."""
    return _word(kind.DESCRIPTOR, number)


def enum_name(kind: Any, word: str, *, field: str) -> str:
    """The name of an enumeration's value from its word, that of value 0 for no word. Raises CommandFault."""
    return kind.Name(_numbered(kind.DESCRIPTOR, word, field))


def _numbered(kind: EnumDescriptor, word: str, field: str) -> int:
    names = [value.name for value in kind.values]
    if not word:
        return kind.values_by_name[names[0]].number
    prefix = _prefix(kind)
    name = f"{prefix}{word.strip().upper().replace('-', '_')}"
    if name not in names[1:]:
        words = ", ".join(name.removeprefix(prefix).lower() for name in names[1:])
        raise CommandFault(f"{word[:64]!r} is unknown", field=field, hint=f"one of {words}")
    return kind.values_by_name[name].number


def document(message: Message, only: Container[str] | None = None) -> dict[str, Any]:
    """A message as JSON: every field (of those named in `only`) under its own name, enumerations as words.

    Absent fields are left out.
    """
    fields: dict[str, Any] = {}
    for field in cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields):
        if only is not None and field.name not in only:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fields[field.name] = dict(value)
        elif field.is_repeated:
            fields[field.name] = [_plain(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            fields[field.name] = _plain(field, value)
    return fields


def put(message: Message, path: str, value: Any, *, named: str) -> None:
    """Set a field to an option's value, unless that is the field's default.

    Args:
        path: The field's path; dots lead into messages. In a list of messages each value adds one message.
        value: Words for enumerations, `K=V` for maps.

    Raises:
        CommandFault: The value is not in the enumeration, or not `K=V`.
    """
    *parents, last = path.split(".")
    field = field_of(message.DESCRIPTOR, path)
    if value is None or (not value and not field.has_presence):
        return
    for depth, part in enumerate(parents):
        inner: Any = getattr(message, part)
        if message.DESCRIPTOR.fields_by_name[part].is_repeated:
            for item in value:
                put(inner.add(), ".".join((*parents[depth + 1 :], last)), item, named=named)
            return
        message = inner
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, last).update(pairs(value, named))
        return
    if field.enum_type is not None:
        names = [_numbered(field.enum_type, word, named) for word in ([value] if isinstance(value, str) else value)]
        value = names if field.is_repeated else names[0]
    if field.is_repeated:
        getattr(message, last).extend(value)
    else:
        setattr(message, last, value)


def field_of(kind: Any, path: str) -> FieldDescriptor:
    """A field of a message's descriptor; dots lead into messages. Raises KeyError."""
    *parents, last = path.split(".")
    for part in parents:
        kind = kind.fields_by_name[part].message_type
    return kind.fields_by_name[last]


def has_field(kind: Any, path: str) -> bool:
    """Whether a message's descriptor has a field; dots lead into messages."""
    try:
        return bool(field_of(kind, path))
    except (KeyError, AttributeError):
        return False


def pairs(texts: Sequence[str], named: str) -> dict[str, str]:
    """Values written as `K=V`, by name. Raises CommandFault naming the option."""
    members: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise CommandFault(f"{text[:80]!r} is not K=V", field=named)
        members[name] = value
    return members


def _plain(field: FieldDescriptor, value: Any) -> object:
    if isinstance(value, Message):
        return document(value)
    return value if field.enum_type is None else _word(field.enum_type, value)


def _word(kind: EnumDescriptor, number: int) -> str:
    if not number:
        return ""
    # A newer server may have values that this version cannot name.
    member = kind.values_by_number.get(number)
    return str(number) if member is None else member.name.removeprefix(_prefix(kind)).lower()


def _prefix(kind: EnumDescriptor) -> str:
    """The common prefix of an enumeration's value names: `DELIBERATION_STATUS_`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.name).upper() + "_"


def local_time(at_ms: int) -> str:
    """Milliseconds since the epoch as local time, to the second; empty for 0."""
    at = iso_time(at_ms)
    return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else ""


def listed_document(execution: pb.Execution) -> dict[str, object]:
    return {
        "execution_id": execution.execution_id,
        "task_id": execution.task_id,
        "kind": enum_word(pb.ExecutionKind, execution.kind),
        "status": enum_word(pb.DeliberationStatus, execution.status),
        "role": enum_word(pb.Role, execution.role).upper(),
        "task": execution.task_description,
        "winner": execution.winner_id,
        "verdict": enum_word(pb.EvidenceVerdict, execution.verdict),
        "created_at": iso_time(execution.created_at_ms),
        "finished_at": iso_time(execution.finished_at_ms),
    }
