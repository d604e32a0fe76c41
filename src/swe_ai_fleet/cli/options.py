"""Options, each defined once: its words, its help, its bounds, and the field of the contract that it sets.

A fault that names a field of the contract is shown with the running command's option for that field.
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
    """The field that an option or an argument sets, and its conversion.

    Attributes:
        fields: Fields of requests; dots lead into messages. Of several, the first that a request has.
        kind: The type to read; None: the annotated type, or else the field's.
        default: The default, where `kind` or the field gives the type.
        turn: Converts the value that was read; None: no conversion.
    """

    fields: tuple[str, ...] = ()
    kind: Any = None
    default: object = None
    turn: Callable[[Any], object] | None = None


class CommandOption(OptionInfo):
    """An option in an annotation: Typer's parameters, and its `Of`."""

    def __init__(self, of: Of, **read: Any) -> None:
        super().__init__(default=..., **read)
        self.of = of


class Argument(ArgumentInfo):
    """An argument in an annotation: Typer's parameters, and its `Of`."""

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
    """An option written as `words` (default: from the parameter's name), with `Of`'s attributes and Typer's parameters.

    In a row, the default for `fields` is the field with the parameter's name, and for `default` that field's default.
    """
    return CommandOption(
        Of(fields=fields, kind=kind, default=default, turn=turn), help=help_, param_decls=words.split(), **read
    )


def argument(
    help_: str, *fields: str, default: object = None, turn: Callable[[Any], object] | None = None, **read: Any
) -> Argument:
    """An argument; in a row it is required unless it has a `default`."""
    return Argument(Of(fields=fields, default=default, turn=turn), help=help_, **read)


# Options of every command that prints something or calls a service.
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

# Tasks: repository, environment, agents and limits.
Repo = Annotated[str, option("The repository to work on.", "repo", metavar="PATH|URL")]
Ref = Annotated[str, option("Branch, tag or commit to start from. Default: the checked-out one.", "repo.ref")]
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
        "A command that prepares the environment, after the detected set-up.",
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
    str, option("The test command. Default: from the files.", "environment.test_command", metavar="CMD")
]
NoDetect = Annotated[
    bool,
    option("Install nothing from the repository's files; --setup still runs.", "environment.disable_detection"),
]
Image = Annotated[
    str,
    option(
        "The container image for the work, if the server allows it.",
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
RequireVerified = Annotated[bool, option("Only a verified candidate may win.", "constraints.require_verified")]
Network = Annotated[
    tuple[str, ...],
    option(
        "A host that tools and checks may reach. Default: none.", "constraints.network.allowed_hosts", metavar="HOST"
    ),
]
Mode = Annotated[str, option("How agents plan: simple, agentic or hybrid. Default: the server's.", "planning_mode")]
Approve = Annotated[
    str, option("Actions that need approval first: plan, risky or every. Default: none.", "approval", metavar="WHAT")
]
Timeout = Annotated[
    int,
    option(
        "Time limit of the agents. Default: 1800.",
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
    float, option("Most cost of an agent, by the profiles' prices. Default: none.", "constraints.max_cost", min=0)
]
TaskId = Annotated[str, option("Makes the call repeatable: the same id is the same task.", "task_id")]
As = Annotated[
    str,
    option(
        "The decider's name, for the log. Default: you.",
        "approver",
        words="--as",
        metavar="NAME",
        turn=lambda name: name or caller_name(),
    ),
]

# Files of tasks, and output files.
Hints = Annotated[bool, option("Give agents the content of hints_text.")]
Stagger = Annotated[float, option("Time between the starts of two tasks.", min=0, metavar="SECONDS")]
Output = Annotated[Path | None, option("Default: print it.", words="-o --output", metavar="FILE")]


def caller_name() -> str:
    """This user's name in records of their decisions; empty where it is unknown."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return re.sub(r"[^A-Za-z0-9._@-]", "-", name)[:64]


RUNNING: ContextVar[Mapping[str, Any]] = ContextVar("RUNNING")
"""The annotations of the running command's parameters, by their names."""
_INDICES = re.compile(r"\[[^\]]*\]")


def with_option(fault: CommandFault) -> CommandFault:
    """The fault with the option that set its field, if an option of the running command did."""
    field = _INDICES.sub("", fault.field)
    takes = {name: (word(name, kind), option_of(kind)) for name, kind in RUNNING.get({}).items()}
    # `orchestrate.repo.ref` is the `repo.ref` of a request inside a request.
    for path in (field, field.partition(".")[2]):
        matches = [
            (len(own) if f"{path}.".startswith(f"{own}.") else 0, flag)
            for flag, info in takes.values()
            for own in (info.of.fields if info is not None else ())
            # Some services name a field of an inner message without the path to that message.
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
    """A parameter as written on the command line: `--agents`, or an argument's name in the help."""
    info = option_of(kind)
    if isinstance(info, Argument):
        return (info.metavar or name.upper()).strip("[].")
    words = [flag.partition("/")[0] for flag in (info.param_decls if info else ()) or () if flag.startswith("--")]
    return words[0] if words else f"--{name.replace('_', '-')}"


def option_of(kind: Any) -> CommandOption | Argument | None:
    return next((mark for mark in get_args(kind)[1:] if isinstance(mark, CommandOption | Argument)), None)
