"""Options, each written once: its words, its help, its bounds, and the field of the contract that it sets.

A fault that names a field of the contract is told with the option of the running command that sets it.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from typer.models import ArgumentInfo, OptionInfo

from swe_ai_fleet.cli.screen import CommandFault

ROLES = "DEV, QA, ARCHITECT, DEVOPS or DATA"
PHASES = "plan, design, build, test, review or done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Of:
    """What an option or an argument is for.

    Attributes:
        fields: Of requests; dots lead into messages. Of several, the first that a request has.
        kind: The type that is read; None: the type that is annotated, or else the field's.
        default: Where `kind` or the field says the type.
        turn: Makes what is meant of what was read; None: it is the same.
    """

    fields: tuple[str, ...] = ()
    kind: Any = None
    default: object = None
    turn: Callable[[Any], object] | None = None


class CommandOption(OptionInfo):
    """An option as an annotation: how Typer reads it, and what it is for."""

    def __init__(self, of: Of, **read: Any) -> None:
        super().__init__(default=..., **read)
        self.of = of


class Argument(ArgumentInfo):
    """The same for an argument."""

    def __init__(self, of: Of, **read: Any) -> None:
        super().__init__(default=..., **read)
        self.of = of


def option(
    help_: str,
    *fields: str,
    words: str = "",
    kind: Any = None,
    default: object = None,
    turn: Callable[[Any], object] | None = None,
    **read: Any,
) -> CommandOption:
    """An option, `words` as it is written (none: as the parameter), with `Of`'s attributes and what Typer takes.

    In a row no fields mean the one with the parameter's name, and no default is what the field has by itself.
    """
    return CommandOption(
        Of(fields=fields, kind=kind, default=default, turn=turn), help=help_, param_decls=words.split(), **read
    )


def argument(
    help_: str, *fields: str, default: object = None, turn: Callable[[Any], object] | None = None, **read: Any
) -> Argument:
    """An argument; one of a row has to be given where no `default` says otherwise."""
    return Argument(Of(fields=fields, default=default, turn=turn), help=help_, **read)


# What every command takes that prints something, or that asks a service.
Json = Annotated[bool, option("Print JSON instead of text.")]
Server = Annotated[str, option("A fleet other than this home's.", envvar="FLEET_SERVER", metavar="HOST:PORT")]
Token = Annotated[str, option("", envvar="FLEET_TOKEN", hidden=True)]
ContextServer = Annotated[
    str, option("A context service other than this home's.", envvar="FLEET_CONTEXT_URL", metavar="HOST:PORT")
]
ContextToken = Annotated[str, option("", envvar="FLEET_CONTEXT_TOKEN", hidden=True)]
Local = Annotated[bool, option("Without a running fleet, start one in this process and stop it again.")]
Execution = Annotated[
    str, argument("An execution id, or a task id for its newest execution.", "execution_id", metavar="ID")
]

# Tasks: what is solved, from where, in what environment, by whom, and how far it may go.
Repo = Annotated[str, option("The repository to work on.", "repo", metavar="PATH|URL")]
Ref = Annotated[str, option("Branch, tag or commit to start from. Default: what is checked out.", "repo.ref")]
Rounds = Annotated[
    int | None,
    option("Rounds of peer review. Default: the council's, or 1.", "options.deliberation_rounds", "rounds", min=0),
]
Role = Annotated[str, option(f"{ROLES}.", "role")]
Check = Annotated[
    tuple[str, ...],
    option(
        "A command a candidate must pass. Default: the tests.",
        "constraints.checks.command",
        words="--check",
        metavar="CMD",
    ),
]
Setup = Annotated[
    tuple[str, ...],
    option(
        "A command that prepares the environment, after what its files ask for.",
        "environment.setup_commands",
        metavar="CMD",
    ),
]
Env = Annotated[
    tuple[str, ...], option("A variable of the environment.", "environment.variables", words="--env", metavar="K=V")
]
Path_ = Annotated[
    tuple[str, ...], option("A directory put first on PATH.", "environment.path_directories", metavar="DIR")
]
TestCommand = Annotated[
    str, option("What runs the tests. Default: what the files say.", "environment.test_command", metavar="CMD")
]
NoDetect = Annotated[
    bool,
    option("Install nothing by the repository's files; --setup commands still run.", "environment.disable_detection"),
]
Image = Annotated[
    str,
    option(
        "The container image that all of it happens in, as far as the server allows it.",
        "environment.container_image",
        words="--image",
        metavar="IMAGE",
    ),
]
ImageCredential = Annotated[
    str,
    option(
        "The server's credential for the image's registry.",
        "environment.image_credential_ref",
        words="--image-credential",
        metavar="NAME",
    ),
]
RequireVerified = Annotated[bool, option("Only what a test or check verifies may win.", "constraints.require_verified")]
Network = Annotated[
    tuple[str, ...],
    option(
        "A host that tools and checks may reach. Default: none.", "constraints.network.allowed_hosts", metavar="HOST"
    ),
]
Mode = Annotated[str, option("How agents plan: simple, agentic or hybrid. Default: the server's.", "planning_mode")]
Approve = Annotated[
    str, option("What people approve first: plan, risky or every. Default: none.", "approval", metavar="WHAT")
]
Timeout = Annotated[
    int,
    option(
        "For the agents' work. Default: 1800.",
        "constraints.timeout_seconds",
        words="--timeout",
        min=0,
        metavar="SECONDS",
    ),
]
Profiles = Annotated[
    str,
    option(
        "Model profiles of the server; the agents take them in turn.",
        "model_profile",
        "config.model_profile",
        metavar="NAME[,NAME]",
    ),
]
MaxCost = Annotated[
    float, option("Most an agent may spend, by the profiles' prices. Default: none.", "constraints.max_cost", min=0)
]
TaskId = Annotated[str, option("Makes the call repeatable: the same id is the same task.", "task_id")]
As = Annotated[
    str,
    option(
        "Who decides, for the log. Default: you.",
        "approver",
        words="--as",
        metavar="NAME",
        turn=lambda name: name or caller_name(),
    ),
]

# Files of tasks, and files that are written.
Hints = Annotated[bool, option("Give agents what is in hints_text.")]
Stagger = Annotated[float, option("Between the beginnings of two.", min=0, metavar="SECONDS")]
Output = Annotated[Path | None, option("Default: print it.", words="-o --output", metavar="FILE")]


def caller_name() -> str:
    """How this user is called where something they say is kept; empty where that cannot be said."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return re.sub(r"[^A-Za-z0-9._@-]", "-", name)[:64]


RUNNING: ContextVar[Mapping[str, Any]] = ContextVar("RUNNING")
"""The annotations of what the command that runs was given, by the names of its parameters."""
_PLACES = re.compile(r"\[[^\]]*\]")


def with_option(fault: CommandFault) -> CommandFault:
    """The fault, which says now what the caller wrote, where its field is something that the caller wrote."""
    field = _PLACES.sub("", fault.field)
    takes = {name: (word(name, kind), option_of(kind)) for name, kind in RUNNING.get({}).items()}
    # `orchestrate.repo.ref` is the `repo.ref` of a request inside a request.
    for path in (field, field.partition(".")[2]):
        matches = [
            (len(own) if f"{path}.".startswith(f"{own}.") else 0, flag)
            for flag, info in takes.values()
            for own in (info.of.fields if info is not None else ())
            # Some services name a field of an inner message as if that were the request.
            if path and (f"{path}.".startswith(f"{own}.") or own.endswith(f".{path}"))
        ]
        if matches:
            fault.option = max(matches)[1]
            return fault
    for name, (flag, _) in takes.items():
        if field and field in (name, flag.strip("-").replace("-", "_").lower()):
            fault.option = flag
    return fault


def word(name: str, kind: Any) -> str:
    """What a caller writes for a parameter: `--agents`, or the name that the help gives to an argument."""
    info = option_of(kind)
    if isinstance(info, Argument):
        return (info.metavar or name.upper()).strip("[].")
    words = [flag.partition("/")[0] for flag in (info.param_decls if info else ()) or () if flag.startswith("--")]
    return words[0] if words else f"--{name.replace('_', '-')}"


def option_of(kind: Any) -> CommandOption | Argument | None:
    return next((mark for mark in get_args(kind)[1:] if isinstance(mark, CommandOption | Argument)), None)
