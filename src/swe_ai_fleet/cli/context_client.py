"""The context service as a command sees it."""

from __future__ import annotations

import getpass
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar, cast

import grpc
import grpc.aio
import typer
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fleet.context.v1.context_pb2_grpc import ContextServiceStub
from swe_ai_fleet.cli.calls import Calls, fault_of_call, open_calls
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.tables import enum_word
from swe_ai_fleet.runtime.channels import tls_fault
from swe_ai_fleet.runtime.place import find_context
from swe_ai_fleet.settings import Settings

R = TypeVar("R", bound=Message)

ContextServer = Annotated[
    str,
    typer.Option(
        "--server", envvar="FLEET_CONTEXT_URL", metavar="HOST:PORT", help="A context service other than this home's."
    ),
]
ContextToken = Annotated[str, typer.Option("--token", envvar="FLEET_CONTEXT_TOKEN", hidden=True)]

_CALL_SECONDS = 30.0
_NOT_FOUND_HINTS = {
    "story_id": "`fleet context story STORY TITLE` begins one",
    "task_id": "`fleet context task STORY TASK TITLE` adds one to a story",
    "node": "nodes are such as story:S-1, task:T-1, execution:ID, file:REPOSITORY/PATH",
    "subject_id": "`fleet list` shows the executions, `fleet show ID` whether one has ended",
}


class ContextClient:
    """Calls to one context service. Raises CommandFault where it answers with a fault."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def call(self, method: str, request: Message, kind: type[R]) -> R:
        """Call a method of the service, such as `GetContext`."""
        return await self._calls.one(method, request, kind, seconds=_CALL_SECONDS)


@asynccontextmanager
async def context_client(
    settings: Settings, *, server: str, token: str, caller: str = ""
) -> AsyncGenerator[ContextClient, None]:
    """A client of the context service that is meant. Raises CommandFault where there is none."""
    place = find_context(settings, server=server, token=token)
    if place is None:
        raise CommandFault(
            f"no context service runs on {settings.home}",
            exit_code=Exit.UNAVAILABLE,
            hint="start a fleet with `fleet up`, or name one with --server",
        )
    async with open_calls(place.address, place.tls) as channel:
        stub = cast("Any", ContextServiceStub)
        yield ContextClient(Calls(stub, channel, address=place.address, token=place.token, caller=caller, fault=_fault))


def _fault(error: grpc.aio.AioRpcError, address: str) -> CommandFault:
    fault = fault_of_call(error, address)
    message, hint = fault.message, fault.hint
    match error.code():
        case grpc.StatusCode.UNAVAILABLE if not fault.field:
            unlike = tls_fault(error.details() or "")
            message = f"no context service answers at {address}" + (f": {unlike[0]}" if unlike else "")
            way = unlike[1] if unlike else "start a fleet with `fleet up`, or name another one with --server"
            hint = f"{way} ({error.details()})"
        case grpc.StatusCode.UNAUTHENTICATED:
            hint = "FLEET_CONTEXT_TOKEN must hold the token of that context service"
        case grpc.StatusCode.NOT_FOUND:
            hint = _NOT_FOUND_HINTS.get(fault.field.rpartition(".")[2], hint)
        case grpc.StatusCode.INVALID_ARGUMENT if fault.field == "namespaces":
            hint = "name some with --namespace, or all of them with --everywhere"
        case _:
            pass
    return CommandFault(message, exit_code=fault.exit_code, field=fault.field, hint=hint)


def caller_name() -> str:
    """How this user is called where something they say is kept; empty where that cannot be said."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return re.sub(r"[^A-Za-z0-9._@-]", "-", name)[:64]


def enum_name(kind: Any, prefix: str, word: str, *, field: str) -> str:
    """The name of the enumeration's value that a word says, that of none for no word. Raises CommandFault."""
    names = [str(name) for name, _ in kind.items()]
    if not word:
        return names[0]
    name = f"{prefix}{word.strip().upper().replace('-', '_')}"
    if name not in names[1:]:
        words = ", ".join(one.removeprefix(prefix).lower() for one in names[1:])
        raise CommandFault(f"{word!r} is unknown", exit_code=Exit.USAGE, field=field, hint=f"one of {words}")
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
    if field.enum_type is None:
        return value
    names = field.enum_type.values_by_number
    zero = names[0].name.removesuffix("UNSPECIFIED")
    return "" if not value else enum_word(names[value].name, zero)
