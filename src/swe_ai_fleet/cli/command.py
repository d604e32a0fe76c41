"""Builds commands from functions, or from rows of a table.

The first parameters of a coroutine are its resources: the screen, the settings, a client of a running fleet, or one
that it opens itself. The others are options; a dataclass among them stands for those of its fields that are options.
`--server`, `--token`, `--local` and `--json` are added.

A row is a command with a single request: its RPC, the fields that its options set, and the view of the reply.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import CALL_SECONDS, Calls, Fleet, FleetClient, context_client
from swe_ai_fleet.cli.edge import run_client, run_command
from swe_ai_fleet.cli.messages import document, field_of, has_field, put
from swe_ai_fleet.cli.options import RUNNING, Argument, Of, option_of, word
from swe_ai_fleet.cli.place import chosen_client, fleet_client
from swe_ai_fleet.cli.screen import Exit, Screen
from swe_ai_fleet.client_settings import ClientSettings
from swe_ai_fleet.extension_registry import CommandEntry

Takes = Mapping[str, tuple[Any, Any]]
"""For each parameter its annotated type and its default."""
JSON: Takes = {"json": (options.Json, False)}
SERVER: Takes = {"server": (options.Server, ""), "token": (options.Token, "")}
CONTEXT_SERVER: Takes = {"server": (options.ContextServer, ""), "token": (options.ContextToken, "")}
_RESOURCES: Mapping[Any, Takes] = {
    Screen: {},
    ClientSettings: {},
    FleetClient: SERVER,
    Fleet: {"local": (options.Local, False), **SERVER},
}


def as_command(function: Callable[..., Any]) -> Callable[..., None]:
    """The command for a function; a function without resources reads its own settings."""
    own: dict[str, tuple[Any, Any]] = {}
    asks: Takes = {}
    resources: list[Any] = []
    bundles: dict[str, Any] = {}
    whole = False
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        # Only commands that need all settings pay for reading them; their options are those of the client settings.
        all_settings = getattr(hints[name], "__module__", "") == "swe_ai_fleet.settings"
        kind = ClientSettings if all_settings else hints[name]
        whole = whole or all_settings or kind == Fleet
        if kind in _RESOURCES:
            resources.append(kind)
            asks = _RESOURCES[kind] or asks
        elif is_dataclass(kind):
            bundles[name] = kind
            own |= _fields(kind)
        else:
            own[name] = kind, parameter.default

    def command(**read: Any) -> None:
        parameters = {
            parameter: converted(own[parameter][0], value) if parameter in own else value
            for parameter, value in read.items()
        }
        for name, bundle in bundles.items():
            parameters[name] = bundle(**{member: parameters.pop(member) for member in _fields(bundle)})
        if not resources:
            function(**parameters)
            return
        json, where = parameters.pop("json"), {name: parameters.pop(name) for name in asks}

        async def work(screen: Screen, settings: Any) -> Exit:
            plain = [{Screen: screen, ClientSettings: settings}[kind] for kind in resources if not _RESOURCES[kind]]
            if FleetClient in resources:
                async with fleet_client(settings, **where) as client:
                    return await function(*plain, client, **parameters)
            fleet = [chosen_client(settings, screen, **where)] if asks else []
            return await function(*plain, *fleet, **parameters)

        (run_command if whole else run_client)(work, json=json)

    takes = {**own, **asks, **JSON} if resources else own
    return typed(command, takes, name=function.__name__)


def typed(command: Callable[..., None], takes: Takes, *, name: str) -> Callable[..., None]:
    """A command with the signature that Typer reads; while it runs, faults find its options in `RUNNING`."""

    def run(**given: Any) -> None:
        RUNNING.set({parameter: kind for parameter, (kind, _) in takes.items()})
        command(**given)

    read = {parameter: _typer_parameter(parameter, kind, default) for parameter, (kind, default) in takes.items()}
    run.__annotations__ = {parameter: kind for parameter, (kind, _) in read.items()}
    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # pyrefly: ignore[missing-attribute]
        [
            inspect.Parameter(parameter, keyword, annotation=kind, default=default)
            for parameter, (kind, default) in read.items()
        ]
    )
    run.__name__ = name
    return run


def _fields(bundle: Any) -> Takes:
    hints = get_type_hints(bundle, include_extras=True)
    return {
        member.name: (hints[member.name], inspect.Parameter.empty if member.default is MISSING else member.default)
        for member in fields(bundle)
        if option_of(hints[member.name])
    }


def _typer_parameter(name: str, kind: Any, default: Any) -> tuple[Any, Any]:
    """The type and default for Typer, which knows neither tuples nor our conversions of values."""
    info = option_of(kind)
    if info is None:
        return kind, default
    plain = get_args(kind)[0]
    if info.of.kind is not None:
        plain, default = info.of.kind, info.of.default
    if plain is bool and not info.param_decls:
        # Typer adds a `--no-…` by default.
        info = copy(info)
        info.param_decls = [word(name, kind)]
    if get_origin(plain) is tuple:
        plain, default = list[get_args(plain)[0]] | None, None if default == () else default  # pyrefly: ignore[invalid-annotation]
    return Annotated[plain, info], default


def converted(kind: Any, value: Any) -> Any:
    """The value of an option, from the value that Typer read."""
    info = option_of(kind)
    if info is not None and info.of.turn is not None:
        return info.of.turn(value)
    is_list = get_args(kind) and get_origin(get_args(kind)[0]) is tuple
    return tuple(value or ()) if is_list else value


_PAGE = 500
_KINDS = {
    FieldDescriptor.CPPTYPE_BOOL: bool,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
    FieldDescriptor.CPPTYPE_INT32: int,
    FieldDescriptor.CPPTYPE_INT64: int,
}
Document = Mapping[str, Any]
Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row of the table.

    Attributes:
        rpc: The full name of the method.
        takes: Arguments and options by the names of parameters, as annotations.
        before: Called with the settings, the request and the options' values, before the request is sent.
        ends: Returns the exit code for a reply. Raises CommandFault for a reply that nothing was done.
        json: The JSON document: members of the request and the reply, `new=old` for a different name, or a function
            that makes it; empty: the whole reply.
        line: The line for people: a template over members of the request and the reply, or a function that makes it.
        pages: The list that is read page by page, to its end or up to `page_size`.
    """

    rpc: str
    takes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    before: Callable[[ClientSettings, Any, Document], Awaitable[None]] | None = None
    ends: Callable[[Any, Any], Exit] = lambda _, __: Exit.ACCEPTED
    json: str | Callable[[Any], Document] = ""
    line: str | Callable[[Document], str] = ""
    view: Callable[[Screen, Any, Any], None] | None = None
    pages: str = ""
    seconds: float = CALL_SECONDS

    @property
    def of_context(self) -> bool:
        """Whether the RPC is of the context service, which may be another than the fleet's."""
        return self.rpc.startswith("fleet.context.")

    @property
    def method(self) -> MethodDescriptor:
        package, service, name = self.rpc.rsplit(".", 2)
        module = import_module(f"{package}.{package.split('.')[1]}_pb2")
        return module.DESCRIPTOR.services_by_name[service].methods_by_name[name]


def table(member: str, columns: Mapping[str, str | Callable[[Any], str]], nothing: str) -> Callable[..., None]:
    """A view of a list as a table: for each column the field, or a function that makes the cell."""

    def view(screen: Screen, answer: Message, _: Message) -> None:
        rows = [
            [str(document(item)[cell]) if isinstance(cell, str) else cell(item) for cell in columns.values()]
            for item in getattr(answer, member)
        ]
        screen.table(tuple(columns), rows, nothing)

    return view


def row_command(name: str, row: TableRow) -> Callable[..., None]:
    kind = row.method.input_type
    where = CONTEXT_SERVER if row.of_context else SERVER
    own = {parameter: _with_type(parameter, annotation, kind) for parameter, annotation in row.takes.items()}

    def command(json: bool, server: str, token: str, **read: Any) -> None:
        async def work(screen: Screen, settings: ClientSettings) -> Exit:
            request: Any = GetMessageClass(kind)()
            for path, value in row.fixed.items():
                put(request, path, value, named=path)
            values = {parameter: converted(own[parameter][0], value) for parameter, value in read.items()}
            for parameter, value in values.items():
                for path in get_args(own[parameter][0])[1].of.fields:
                    put(request, path, value, named=word(parameter, own[parameter][0]).strip("-").lower())
            if row.before is not None:
                await row.before(settings, request, values)
            async with _calls(row, settings, server, token) as calls:
                if "execution" in values:
                    request.execution_id = await FleetClient(calls).find(values["execution"])
                answer = await _answer(row, calls, request)
            return _show(row, screen, request, answer)

        run_client(work, json=json)

    return typed(command, {**own, **where, **JSON}, name=name)


def command_of(words: str, entry: CommandEntry) -> Callable[..., None]:
    """The command of an entry, with the signature that Typer reads."""
    module_name, _, member = entry.at.partition(":")
    module = import_module(f"swe_ai_fleet.{module_name}")
    if not member:
        return row_command(words.rpartition(" ")[2], module.ROWS[words])
    return as_command(getattr(module, member))


@asynccontextmanager
async def _calls(row: TableRow, settings: ClientSettings, server: str, token: str) -> AsyncGenerator[Calls]:
    if row.of_context:
        async with context_client(settings, server=server, token=token) as calls:
            yield calls
    else:
        async with fleet_client(settings, server=server, token=token) as client:
            yield client.calls


async def _answer(row: TableRow, calls: Calls, request: Any) -> Any:
    """The reply; the pages of a list as one reply, with the token of the next page that was not read."""
    kind = GetMessageClass(row.method.output_type)
    if not row.pages:
        return await calls.unary(row.method.name, request, kind, seconds=row.seconds)
    page_size = request.page_size
    whole: Any = kind()
    while True:
        missing = page_size - len(getattr(whole, row.pages))
        request.page_size = min(missing, _PAGE) if page_size else _PAGE
        answer: Any = await calls.unary(row.method.name, request, kind, seconds=row.seconds)
        whole.MergeFrom(answer)
        request.page_token = whole.next_page_token = answer.next_page_token
        if not answer.next_page_token or (page_size and len(getattr(whole, row.pages)) >= page_size):
            return whole


def _show(row: TableRow, screen: Screen, request: Message, answer: Message) -> Exit:
    code = row.ends(answer, request)
    both = {**document(request), **document(answer)}
    if screen.json:
        if callable(row.json):
            screen.document(row.json(answer))
        else:
            members = (member.partition("=") for member in row.json.split())
            named = {new: both[old or new] for new, _, old in members}
            screen.document(named or document(answer))
    elif row.view is not None:
        row.view(screen, answer, request)
    else:
        screen.line(row.line(both) if callable(row.line) else row.line.format_map(both))
    return code


def _with_type(name: str, annotation: Any, request: Any) -> tuple[Any, Any]:
    """(annotation, default) of an option; the request's field adds the type and the default where none are given."""
    parts: Any = get_args(annotation) or (Any, annotation)
    kind, info = parts
    mark: Of = info.of
    path = next((path for path in mark.fields or (name,) if has_field(request, path)), "")
    assert path or not mark.fields, f"{request.full_name} has none of {mark.fields}"
    needed = isinstance(info, Argument) and mark.default is None
    default: Any = inspect.Parameter.empty if needed else mark.default
    if mark.kind is not None:
        kind = mark.kind
        default = mark.default if mark.default is not None or not isinstance(kind, type) else kind()
    elif not path:
        default = kind() if default is None else default
    else:
        own = field_of(request, path)
        if kind is Any:
            type_: Any = str if own.message_type is not None else _KINDS.get(own.cpp_type, str)
            kind = tuple[type_, ...] if own.is_repeated else type_ | None if own.has_presence else type_
        if default is None and not own.has_presence:
            default = () if own.is_repeated else kind()
    info = copy(info)
    info.of = Of(fields=(path,) if path else (), turn=mark.turn)
    return Annotated[kind, info], default
