"""Functions as commands: what they are given, whom they ask, and options that are dataclasses.

The first parameters of a coroutine are what it works with: the screen, and the settings, calls to a running fleet, or a
fleet that is still to be opened. The others are options; one that is a dataclass stands for those among its fields
that are options. `--server`, `--token`, `--local` and `--json` come by themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import Fleet, FleetClient
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.naming import RUNNING, marked
from swe_ai_fleet.cli.options import Of
from swe_ai_fleet.cli.place import chosen_client, fleet_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.settings import Settings

Takes = Mapping[str, tuple[Any, Any]]
"""Of each parameter its type, with its marks, and its default."""
JSON: Takes = {"json": (options.Json, False)}
SERVER: Takes = {"server": (options.Server, ""), "token": (options.Token, "")}
CONTEXT_SERVER: Takes = {"server": (options.ContextServer, ""), "token": (options.ContextToken, "")}
_WORKS_WITH: Mapping[Any, Takes] = {
    Screen: {},
    Settings: {},
    FleetClient: SERVER,
    Fleet: {"local": (options.Local, False), **SERVER},
}


def as_command(function: Callable[..., Any]) -> Callable[..., None]:
    """The command that a function is; one that works with nothing does everything by itself."""
    own: dict[str, tuple[Any, Any]] = {}
    asks: Takes = {}
    works_with: list[Any] = []
    bundles: dict[str, Any] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if kind in _WORKS_WITH:
            works_with.append(kind)
            asks = _WORKS_WITH[kind] or asks
        elif is_dataclass(kind):
            bundles[name] = kind
            own |= _fields(kind)
        else:
            own[name] = kind, parameter.default

    def command(**read: Any) -> None:
        given = {one: meant(own[one][0], value) if one in own else value for one, value in read.items()}
        for name, bundle in bundles.items():
            given[name] = bundle(**{one: given.pop(one) for one in _fields(bundle)})
        if not works_with:
            function(**given)
            return
        json, where = given.pop("json"), {name: given.pop(name) for name in asks}

        async def work(screen: Screen, settings: Settings) -> Exit:
            plain = [{Screen: screen, Settings: settings}[kind] for kind in works_with if not _WORKS_WITH[kind]]
            if FleetClient in works_with:
                async with fleet_client(settings, **where) as client:
                    return await function(*plain, client, **given)
            fleet = [chosen_client(settings, screen, **where)] if asks else []
            return await function(*plain, *fleet, **given)

        carry_out(work, json=json)

    takes = {**own, **asks, **JSON} if works_with else own
    return typed(command, takes, about=function.__doc__ or "", name=function.__name__)


def typed(command: Callable[..., None], takes: Takes, *, about: str, name: str) -> Callable[..., None]:
    """A command as Typer takes it; while it runs, faults find its options."""

    def run(**given: Any) -> None:
        RUNNING.set({one: kind for one, (kind, _) in takes.items()})
        command(**given)

    read = {one: _read(kind, default) for one, (kind, default) in takes.items()}
    run.__annotations__ = {one: kind for one, (kind, _) in read.items()}
    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [inspect.Parameter(one, keyword, annotation=kind, default=default) for one, (kind, default) in read.items()]
    )
    run.__doc__, run.__name__ = about, name
    return run


def _fields(bundle: Any) -> Takes:
    """Those among a dataclass's fields that are options."""
    hints = get_type_hints(bundle, include_extras=True)
    return {
        one.name: (hints[one.name], inspect.Parameter.empty if one.default is MISSING else one.default)
        for one in fields(bundle)
        if marked(hints[one.name], OptionInfo) or marked(hints[one.name], ArgumentInfo)
    }


def _read(kind: Any, default: Any) -> tuple[Any, Any]:
    """What Typer is to read: it knows no tuples, and nothing of what is made of a value then."""
    mark = marked(kind, Of)
    info = marked(kind, OptionInfo) or marked(kind, ArgumentInfo)
    if mark is not None and mark.kind is not None:
        return Annotated[mark.kind, info], mark.default
    if info is not None and get_origin(get_args(kind)[0]) is tuple:
        one = get_args(get_args(kind)[0])[0]
        return Annotated[list[one] | None, info], None if default == () else default  # pyright: ignore
    return kind, default


def meant(kind: Any, value: Any) -> Any:
    """What an option says, of what was read for it."""
    mark = marked(kind, Of)
    if mark is not None and mark.turn is not None:
        return mark.turn(value)
    is_list = get_args(kind) and get_origin(get_args(kind)[0]) is tuple
    return tuple(value or ()) if is_list else value
