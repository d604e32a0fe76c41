"""Conversion between domain values and messages of the contract, by the names of their fields.

Both sides use the same names, so that a field that is added to both needs no code. The general rules:

- a field takes the attribute of its own name; `x_at_ms` takes `x_at`, an ISO 8601 time, `x_bytes` takes `x`,
  `error_message` takes `error`, `cost_usd` takes `cost`, `task_description` takes `description`;
- a number takes the length of a list;
- an enum's value is the member with the same name after the enum's prefix, `..._UNSPECIFIED` is no value;
- a missing field has the domain's default; where the field has no presence, 0 and "" count as missing;
- lists are tuples (of an enum: each member once), maps are dicts, messages are values or None.

`_NAMES` and `_MEMBERS` have the names that differ.
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
"""By message, the attribute of a field with a different name; "" where the same name has different meanings."""
_MEMBERS: Mapping[str, Mapping[str, str]] = {
    "fleet.orchestrator.v1.ExecutionKind": {
        "DELIBERATE": "DELIBERATION",
        "ORCHESTRATE": "ORCHESTRATION",
        "JUDGE": "JUDGEMENT",
    },
}
"""By enum, the domain's member for a value (without its prefix) with a different name."""
ERROR_DOMAIN = "swe-ai-fleet"
"""The domain in the error details of every service of the fleet."""
_EVERYWHERE = {"error_message": "error", "cost_usd": "cost", "task_description": "description"}
_Getter = Callable[[Any], Any]


def to_message(kind: type[M], value: object, /, **overrides: Any) -> M:
    """The message of a value. `overrides` are fields that the value does not have, or differently; None leaves one out.

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
        # Leave out None, and values that the field's absence means anyway.
        if field_value is None or (not field_value and not present):
            continue
        message[name] = convert(field_value)
    return kind(**message)


def from_message(kind: type[T], message: Message, /, **overrides: Any) -> T:
    """The value of a message. `overrides` are attributes that the message does not have, or differently.

    Raises:
        TypeError: The value has an attribute without a default that neither the message nor `overrides` has.
        FleetError: Raised by the value's own checks.
    """
    for name, readers in _readers(kind, type(message)):
        if name not in overrides:
            read = next((value for reader in readers if (value := reader(message)) is not MISSING), MISSING)
            if read is not MISSING:
                overrides[name] = read
    return kind(**overrides)


def to_enum(enum: Any, value: object) -> Any:
    """The number of a domain member in an enum of the contract (`pb.Role`); 0 for None and "".

    Members given as text may be in any case.
    """
    return _number(cast("EnumDescriptor", enum.DESCRIPTOR), value)


def from_enum(kind: type[E], enum: Any, number: int) -> E | None:
    """The domain member of a number of an enum of the contract; None for the unspecified one."""
    return _member(kind, cast("EnumDescriptor", enum.DESCRIPTOR), number)


def _number(enum: EnumDescriptor, value: object) -> int:
    if value is None or value == "":
        return 0
    return _numbers(enum)[value.name if isinstance(value, Enum) else str(value).upper()]


def _member(kind: type[E], enum: EnumDescriptor, number: int) -> E | None:
    if number == 0:
        return None
    # A number of a newer contract is unknown here, like an unspecified one.
    return next(
        (kind[name] for name, number_of in _numbers(enum).items() if number_of == number and name in kind.__members__),
        None,
    )


@cache
def _numbers(enum: EnumDescriptor) -> Mapping[str, int]:
    """The numbers of an enum by the names of the domain."""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
    ours = {theirs: ours for ours, theirs in _MEMBERS.get(enum.full_name, {}).items()}
    named = ((value.name.removeprefix(prefix), value.number) for value in enum.values)
    return {ours.get(name, name): number for name, number in named}


def _attribute(field: FieldDescriptor, owner: type) -> str | None:
    """The domain's attribute for a field; None where there is none."""
    name = _NAMES.get(cast("Descriptor", field.containing_type).full_name, {}).get(field.name)
    usual = (field.name, _EVERYWHERE.get(field.name, ""), field.name.removesuffix("_ms").removesuffix("_bytes"))
    named = getattr(owner, "__dataclass_fields__", {})
    for attribute in usual if name is None else (name,):
        if attribute in named or isinstance(getattr(owner, attribute, None), property):
            return attribute
    return None


@cache
def _writers(kind: type[Message], owner: type) -> list[tuple[str, str, _Getter, bool]]:
    """For each field of the message: its name, the value's attribute ("": it has to be given), the conversion, and
    whether 0 or empty differs from a missing field."""
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
            return lambda at: datetime.fromisoformat(at) if at else None
        case "google.protobuf.Struct":
            return lambda mapping_value: json_format.ParseDict(dict(mapping_value), kind())
        case _:
            return lambda value: _construct(kind, value)


def _construct(kind: type[M], value: object) -> M:
    if isinstance(value, kind):
        return value
    if isinstance(value, tuple):
        # Lists of lists, and lists that can be left out, are messages of their own.
        (only,) = descriptor_of(kind).fields
        return kind(**{only.name: _writer(only)(value)})
    return to_message(kind, value)


@cache
def _readers(kind: type, source: type[Message]) -> list[tuple[str, list[_Getter]]]:
    """The readers of each attribute of the value; the first that does not return MISSING counts."""
    hints = get_type_hints(kind)
    by_attribute: dict[str, list[FieldDescriptor]] = {}
    for field in descriptor_of(source).fields:
        if (attribute := _attribute(field, kind)) is not None:
            # The replacement of a deprecated field comes after it, and takes precedence.
            by_attribute.setdefault(attribute, []).insert(0, field)
    readers: list[tuple[str, list[_Getter]]] = []
    for attribute in fields(cast("Any", kind)):
        name, bare = attribute.name, attribute.default is MISSING and attribute.default_factory is MISSING
        if attribute.init and name in by_attribute:
            readers.append((name, [_reader(field, hints[name], bare=bare) for field in by_attribute[name]]))
    return readers


def _reader(field: FieldDescriptor, hint: Any, *, bare: bool) -> _Getter:
    """The reader of an attribute. A `bare` attribute has no default: for it 0 and "" are values."""
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
                # Unspecified and unknown numbers are dropped, and each member appears once.
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
    """The member of a text, parsed by the domain. Raises InvalidRequest about the field that is being read."""
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


def _inside(path: str) -> AbstractContextManager[None]:
    """Inside, faults name their fields by their path in the outer message."""
    return fields_named(lambda field: f"{path}.{field}" if field else path)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        remaining = [part for part in get_args(hint) if part is not type(None)]
        return remaining[0] if len(remaining) == 1 else hint
    return hint


@dataclass(slots=True, kw_only=True)
class ErrorDetails:
    """The details of a service of the fleet about a failed call, beyond code and message.

    Attributes:
        reason: The kind of fault, such as `NOT_FOUND`.
        field: The field of the request that is wrong; empty where it is not a field.
        hint: The way out; empty where there is none.
        retry_seconds: When a retry makes sense; None: not given.
    """

    reason: str
    field: str = ""
    hint: str = ""
    retry_seconds: int | None = None


def error_details(trailer: Iterable[object] | None) -> ErrorDetails | None:
    """The details in the trailing metadata of a call; None where it was not answered by a service of the fleet."""
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
