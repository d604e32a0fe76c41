"""Domain values and messages of the contract, made of each other by the names of their fields.

Both sides name things alike, so that a field that is added to both needs no line of code. What holds everywhere:

- a field takes the attribute of its own name; `x_at_ms` takes `x_at`, an ISO 8601 time, `x_bytes` takes `x`,
  `error_message` takes `error`, `cost_usd` takes `cost`, `task_description` takes `description`;
- a number takes the length of a list;
- an enum's value is that of the member with the same name behind the enum's prefix, `..._UNSPECIFIED` is no value;
- what a message leaves out has the default that the domain gives it, where the contract has no presence for it 0 and ""
  count as left out;
- lists are tuples (of members of an enum with each once), maps are dicts, messages are values or nothing.

`_NAMES` and `_MEMBERS` have what is called differently on the two sides.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeGuard, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from swe_ai_fleet.domain.errors import InvalidRequest, fields_named
from swe_ai_fleet.domain.text import iso_time, milliseconds, well_formed

M = TypeVar("M", bound=Message)
T = TypeVar("T")
E = TypeVar("E", bound=Enum)

_NAMES: Mapping[str, Mapping[str, str]] = {
    "fleet.orchestrator.v1.PolicyResult": {"violations": "problems"},
    "fleet.orchestrator.v1.LintResult": {"errors": "problems", "error_count": "problems", "warning_count": "warnings"},
    "fleet.orchestrator.v1.CheckResult": {"check_type": "name"},
    "fleet.orchestrator.v1.TestSummary": {"failing_tests": "failing"},
    "fleet.orchestrator.v1.Baseline": {"summary": "line"},
    "fleet.orchestrator.v1.PendingApproval": {"proposal": "approach"},
    "fleet.orchestrator.v1.DeliberationResult": {
        "evidence_score": "evidence",
        "review_score": "review",
        "vote_share": "votes",
        "tests_score": "tests",
        "verifier_score": "verifier",
    },
    "fleet.orchestrator.v1.ToolOperation": {"params": "arguments", "audit_seq": "seq"},
    "fleet.orchestrator.v1.ExecutionEvent": {"event_id": "id"},
    "fleet.orchestrator.v1.Critique": {"created_at_ms": "at", "details": "findings", "findings": ""},
    "fleet.orchestrator.v1.EnvironmentSpec": {
        "setup_commands": "setup",
        "path_directories": "path",
        "container_image": "image",
        "image_credential_ref": "image_credential",
    },
    "fleet.orchestrator.v1.RepoRef": {"credential_ref": "credential"},
    "fleet.notification.v1.Delivery": {"attempt": "number"},
    "fleet.conversation.v1.Answer": {"task_proposed": "proposed", "repeated_message": "repeated"},
    "fleet.conversation.v1.Turn": {"answered_at_ms": "at"},
    "fleet.conversation.v1.Conversation": {"turn_count": "count", "memory_namespaces": "namespaces"},
    "fleet.planning.v1.PlanSession": {"results": "answer"},
    "fleet.context.v1.GetContextResponse": {
        "context_text": "text",
        "token_count": "tokens",
        "version_hash": "version",
        "version": "",
    },
}
"""By message: the attribute of a field that is called differently; none where the same name means another thing."""
_MEMBERS: Mapping[str, Mapping[str, str]] = {
    "fleet.orchestrator.v1.ExecutionKind": {
        "DELIBERATE": "DELIBERATION",
        "ORCHESTRATE": "ORCHESTRATION",
        "JUDGE": "JUDGEMENT",
    },
}
"""By enum: the member, without its prefix, of a value that has another name in the domain."""
ERROR_DOMAIN = "swe-ai-fleet"
"""Stands in the details of every fault of a service of the fleet's."""
_EVERYWHERE = {"error_message": "error", "cost_usd": "cost", "task_description": "description"}
_Getter = Callable[[Any], Any]


def to_message(kind: type[M], value: object, /, **overrides: Any) -> M:
    """The message of a value. `overrides` are fields that it does not have, or not like this; None leaves one out.

    Raises:
        TypeError: The message has a field that neither the value nor `overrides` has.
    """
    message = {name: field_value for name, field_value in overrides.items() if field_value is not None}
    for name, attribute, convert, present in _writers(kind, type(value)):
        if name in overrides:
            continue
        if not attribute:
            raise TypeError(f"{type(value).__qualname__} has nothing for {kind.DESCRIPTOR.full_name}.{name}")
        field_value = getattr(value, attribute)
        # Nothing, and what a message without the field says anyway.
        if field_value is None or (not field_value and not present):
            continue
        message[name] = convert(field_value)
    return kind(**message)


def from_message(kind: type[T], message: Message, /, **overrides: Any) -> T:
    """The value of a message. `overrides` are attributes that the message does not have, or not like this.

    Raises:
        TypeError: The value has an attribute without a default that neither the message nor `overrides` has.
        FleetError: What the value's own rules raise.
    """
    for name, readers in _readers(kind, type(message)):
        if name not in overrides:
            read = next((value for reader in readers if (value := reader(message)) is not MISSING), MISSING)
            if read is not MISSING:
                overrides[name] = read
    return kind(**overrides)


def to_enum(enum: Any, value: object) -> Any:
    """The number that an enum of the contract (`pb.Role`) has for a member of the domain's; 0 for None and "".

    Members in text may be in any case.
    """
    return _number(cast("EnumDescriptor", enum.DESCRIPTOR), value)


def from_enum(kind: type[E], enum: Any, number: int) -> E | None:
    """The domain's member that a number of an enum of the contract stands for; None for the one that says nothing."""
    return _member(kind, cast("EnumDescriptor", enum.DESCRIPTOR), number)


def _number(enum: EnumDescriptor, value: object) -> int:
    if value is None or value == "":
        return 0
    return _numbers(enum)[value.name if isinstance(value, Enum) else str(value).upper()]


def _member(kind: type[E], enum: EnumDescriptor, number: int) -> E | None:
    if number == 0:
        return None
    # A number that only a newer contract knows says nothing here.
    return next(
        (kind[name] for name, number_of in _numbers(enum).items() if number_of == number and name in kind.__members__),
        None,
    )


@cache
def _numbers(enum: EnumDescriptor) -> Mapping[str, int]:
    """The numbers of an enum by what the domain calls them."""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
    ours = {theirs: ours for ours, theirs in _MEMBERS.get(enum.full_name, {}).items()}
    named = ((value.name.removeprefix(prefix), value.number) for value in enum.values)
    return {ours.get(name, name): number for name, number in named}


def _attribute(field: FieldDescriptor, owner: type) -> str | None:
    """What the domain calls a field; None where it has nothing like it."""
    name = _NAMES.get(cast("Descriptor", field.containing_type).full_name, {}).get(field.name)
    usual = (field.name, _EVERYWHERE.get(field.name, ""), field.name.removesuffix("_ms").removesuffix("_bytes"))
    named = getattr(owner, "__dataclass_fields__", {})
    for attribute in usual if name is None else (name,):
        if attribute in named or isinstance(getattr(owner, attribute, None), property):
            return attribute
    return None


@cache
def _writers(kind: type[Message], owner: type) -> list[tuple[str, str, _Getter, bool]]:
    """For each field of the message: its name, the value's attribute (none: it has to be given), how that is
    converted, and whether a field with 0 or nothing in it says more than one that is not there."""
    return [
        (field.name, _attribute(field, owner) or "", _writer(field), field.has_presence)
        for field in descriptor_of(kind).fields
    ]


def _writer(field: FieldDescriptor) -> _Getter:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key = _single_writer(field.message_type.fields_by_name["key"])
        inner = _single_writer(field.message_type.fields_by_name["value"])
        return lambda mapping_value: {key(name): inner(item) for name, item in mapping_value.items()}
    convert = _single_writer(field)
    return (lambda several: [convert(item) for item in several]) if field.is_repeated else convert


def _single_writer(field: FieldDescriptor) -> _Getter:
    if (enum := field.enum_type) is not None:
        return lambda value: _number(enum, value)
    if field.message_type is not None:
        return _nested(field.message_type)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda data: bytes.fromhex(data) if isinstance(data, str) else data
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_BOOL):
        return lambda value: value
    return _integer


def _text(value: object) -> str:
    text = str(value)
    return text if text.isascii() else well_formed(text)


def _integer(value: object) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return milliseconds(value)
    if isinstance(value, (tuple, frozenset)):
        return len(cast("tuple[object, ...]", value))
    return int(cast("float", value))


def _nested(descriptor: Descriptor) -> _Getter:
    kind = message_factory.GetMessageClass(descriptor)
    match descriptor.full_name:
        case "google.protobuf.Timestamp":
            return lambda at: _filled(kind, "FromDatetime", datetime.fromisoformat(at)) if at else None
        case "google.protobuf.Struct":
            return lambda mapping_value: json_format.ParseDict(dict(mapping_value), kind())
        case _:
            return lambda value: _construct(kind, value)


def _construct(kind: type[M], value: object) -> M:
    if isinstance(value, kind):
        return value
    if isinstance(value, tuple):
        # Lists of lists, and lists that can be left out, stand in messages of their own.
        (only,) = descriptor_of(kind).fields
        return kind(**{only.name: _writer(only)(value)})
    return to_message(kind, value)


def _filled(kind: type[Message], method: str, value: object) -> Message:
    message = kind()
    getattr(message, method)(value)
    return message


@cache
def _readers(kind: type, source: type[Message]) -> list[tuple[str, list[_Getter]]]:
    """For each attribute of the value how it is read: by the first reader that does not give MISSING."""
    hints = get_type_hints(kind)
    by_attribute: dict[str, list[FieldDescriptor]] = {}
    for field in descriptor_of(source).fields:
        if (attribute := _attribute(field, kind)) is not None:
            # What took the place of a deprecated field stands behind it, and counts.
            by_attribute.setdefault(attribute, []).insert(0, field)
    readers: list[tuple[str, list[_Getter]]] = []
    for attribute in fields(cast("Any", kind)):
        name, bare = attribute.name, attribute.default is MISSING and attribute.default_factory is MISSING
        if attribute.init and name in by_attribute:
            readers.append((name, [_reader(field, hints[name], bare=bare) for field in by_attribute[name]]))
    return readers


def _reader(field: FieldDescriptor, hint: Any, *, bare: bool) -> _Getter:
    """How an attribute is read. `bare` attributes have no default: for them 0 and "" are values."""
    name, inner = field.name, _without_none(hint)
    optional = inner is not hint
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = _single_reader(field.message_type.fields_by_name["value"], (get_args(inner) or (str, str))[1])
        return lambda message: {key: of(item) for key, item in getattr(message, name).items()}
    if field.is_repeated:
        kind = (get_args(inner) or (str,))[0]
        element = _single_reader(field, kind)

        def entries(message: Message) -> Any:
            elements: list[Any] = []
            for number, each in enumerate(getattr(message, name)):
                with _inside(f"{name}[{number}]"):
                    if _is_enum(kind) and isinstance(each, str) and not each.strip():
                        raise InvalidRequest(f"an empty {kind.__name__.lower()}", hint=f"one of {_member_names(kind)}")
                    elements.append(element(each))
            if _is_enum(kind):
                # A number that says nothing is no member, and each member is there once.
                elements = list(dict.fromkeys(item for item in elements if item is not None))
            return tuple(elements) if elements or bare else MISSING

        return entries
    nothing: Any = None if bare and optional else MISSING
    required = bare and not optional
    timed = field.name.endswith("_ms") and inner is str
    convert: _Getter = iso_time if timed else _single_reader(field, inner)

    def read(message: Message) -> Any:
        value = getattr(message, name)
        with _inside(name):
            if field.has_presence:
                return convert(value) if message.HasField(name) or required else nothing
            if field.enum_type is not None:
                return nothing if (member := convert(value)) is None else member
            return convert(value) if value or required else nothing

    return read


def _single_reader(field: FieldDescriptor, hint: Any) -> _Getter:
    inner = _without_none(hint)
    if (enum := field.enum_type) is not None:
        return lambda number: _member(inner, enum, number)
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Struct":
            return json_format.MessageToDict
        if get_origin(inner) is tuple:
            (only,) = field.message_type.fields
            return _reader(only, inner, bare=True)
        return lambda message: from_message(inner, message)
    if inner is float:
        return float
    if inner is str and field.type == FieldDescriptor.TYPE_BYTES:
        return lambda data: data.hex()
    if _is_enum(inner):
        return lambda text: _parsed(inner, text)
    return lambda value: value


def _is_enum(kind: Any) -> TypeGuard[type[Enum]]:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _parsed(kind: type[Enum], text: str) -> Enum:
    """A member in text, as the domain reads it. Raises InvalidRequest; its field is the one that is being read."""
    try:
        with fields_named(lambda _: ""):
            return cast("Callable[[str], Enum]", getattr(kind, "parse", kind))(text)
    except ValueError:
        raise InvalidRequest(
            f"{text[:64]!r} is not a {kind.__name__.lower()}", hint=f"one of {_member_names(kind)}"
        ) from None


def _member_names(kind: type[Enum]) -> str:
    return ", ".join(str(member.value) for member in kind)


def descriptor_of(message: Message | type[Message]) -> Descriptor:
    """The descriptor of a message or its type."""
    return cast("Descriptor", message.DESCRIPTOR)


def _inside(place: str) -> AbstractContextManager[None]:
    """Inside, faults name their fields as they stand in the message that has `place`."""
    return fields_named(lambda field: f"{place}.{field}" if field else place)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        remaining = [part for part in get_args(hint) if part is not type(None)]
        return remaining[0] if len(remaining) == 1 else hint
    return hint


@dataclass(slots=True, kw_only=True)
class ErrorDetails:
    """What a service of the fleet's says of a failed call beyond code and message.

    Attributes:
        reason: The kind of fault, such as `NOT_FOUND`.
        field: Of the request, what is wrong; empty where it is no field.
        hint: The way out; empty where there is none to tell.
        retry_seconds: When another try makes sense; None: it does not say.
    """

    reason: str
    field: str = ""
    hint: str = ""
    retry_seconds: int | None = None


def error_details(trailer: Iterable[object] | None) -> ErrorDetails | None:
    """The details in the trailing metadata of a call; None where none of the fleet's services answered it."""
    metadata = cast("Iterable[tuple[str, bytes]]", trailer or ())
    packed = next((value for key, value in metadata if key == "grpc-status-details-bin"), b"")
    try:
        details = status_pb2.Status.FromString(packed).details
    except DecodeError:
        return None
    error = ErrorDetails(reason="")
    for detail in details:
        info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            error.reason, error.hint = info.reason, info.metadata.get("hint", "")
            error.field = error.field or info.metadata.get("field", "")
        elif detail.Unpack(request):
            error.field = next((violation.field for violation in request.field_violations), error.field)
        elif detail.Unpack(retry):
            error.retry_seconds = max(retry.retry_delay.seconds, 1)
    return error if error.reason else None
