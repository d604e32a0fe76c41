"""How the options of the command that runs are called, by the fields of the contract that they set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, get_args

from typer.models import ArgumentInfo, OptionInfo

from swe_ai_fleet.cli.exits import CommandFault
from swe_ai_fleet.cli.options import Of

RUNNING: ContextVar[Mapping[str, Any]] = ContextVar("RUNNING")
"""The annotations of what the command that runs was given, by the names of its parameters."""
_PLACES = re.compile(r"\[[^\]]*\]")


def with_option(fault: CommandFault) -> CommandFault:
    """The fault, which says now what the caller wrote, where its field is something that the caller wrote."""
    field = _PLACES.sub("", fault.field)
    takes = {name: (word(name, kind), marked(kind, Of)) for name, kind in RUNNING.get({}).items()}
    # `orchestrate.repo.ref` is the `repo.ref` of a request inside a request.
    for path in (field, field.partition(".")[2]):
        found = [
            (len(own) if f"{path}.".startswith(f"{own}.") else 0, said)
            for said, mark in takes.values()
            for own in (mark.fields if mark is not None else ())
            # Some services name a field of an inner message as if that were the request.
            if path and (f"{path}.".startswith(f"{own}.") or own.endswith(f".{path}"))
        ]
        if found:
            fault.option = max(found)[1]
            return fault
    for name, (said, _) in takes.items():
        if field and field in (name, said.strip("-").replace("-", "_").lower()):
            fault.option = said
    return fault


def word(name: str, kind: Any) -> str:
    """What a caller writes for a parameter: `--agents`, or the name that the help gives to an argument."""
    if (argument := marked(kind, ArgumentInfo)) is not None:
        return (argument.metavar or name.upper()).strip("[].")
    option = marked(kind, OptionInfo)
    declared = (option.default, *(option.param_decls or ())) if option is not None else ()
    words = [one.partition("/")[0] for one in declared if isinstance(one, str) and one.startswith("--")]
    return words[0] if words else f"--{name.replace('_', '-')}"


def marked(kind: Any, mark: type) -> Any:
    """The mark of this type among those of an annotation, if there is one."""
    return next((one for one in get_args(kind)[1:] if isinstance(one, mark)), None)
