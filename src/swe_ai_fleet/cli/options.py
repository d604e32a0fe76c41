"""Options, each written once: its words, its help, its bounds, and the field of the contract that it sets.

A fault that names a field of the contract is told with the option of the running command that sets it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

from swe_ai_fleet.cli.calls import caller_name
from swe_ai_fleet.cli.exits import CommandFault
from swe_ai_fleet.domain.task import UncommittedChanges

UNCOMMITTED = {None: UncommittedChanges.REFUSE, True: UncommittedChanges.INCLUDE, False: UncommittedChanges.IGNORE}
"""What `IncludeDirty` means."""
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


def of(*fields: str) -> Of:
    """The mark of an option that sets these fields."""
    return Of(fields=fields)


# What every command takes that prints something, or that asks a service.
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Server = Annotated[
    str, typer.Option("--server", envvar="FLEET_SERVER", metavar="HOST:PORT", help="A fleet other than this home's.")
]
Token = Annotated[str, typer.Option("--token", envvar="FLEET_TOKEN", hidden=True)]
ContextServer = Annotated[
    str,
    typer.Option(
        "--server", envvar="FLEET_CONTEXT_URL", metavar="HOST:PORT", help="A context service other than this home's."
    ),
]
ContextToken = Annotated[str, typer.Option("--token", envvar="FLEET_CONTEXT_TOKEN", hidden=True)]
Local = Annotated[
    bool, typer.Option("--local", help="Without a running fleet, start one in this process and stop it again.")
]
Execution = Annotated[
    str,
    typer.Argument(metavar="ID", help="An execution id, or a task id for its newest execution."),
    of("execution_id"),
]

# Tasks: what is solved, from where, in what environment, by whom, and how far it may go.
Repo = Annotated[str, typer.Option("--repo", metavar="PATH|URL", help="The repository to work on."), of("repo")]
Ref = Annotated[
    str,
    typer.Option("--ref", help="Branch, tag or commit to start from. Default: what is checked out."),
    of("repo.ref"),
]
IncludeDirty = Annotated[
    UncommittedChanges,
    typer.Option("--include-dirty/--ignore-dirty", help="Start from uncommitted changes too, or without them."),
    Of(fields=("repo.uncommitted",), kind=bool | None, turn=UNCOMMITTED.__getitem__),
]
Rounds = Annotated[
    int | None,
    typer.Option("--rounds", min=0, help="Rounds of peer review. Default: the council's, or 1."),
    of("options.deliberation_rounds", "rounds"),
]
Role = Annotated[str, typer.Option("--role", help=f"{ROLES}."), of("role")]
Check = Annotated[
    tuple[str, ...],
    typer.Option("--check", metavar="CMD", help="A command a candidate must pass. Default: the tests."),
    of("constraints.checks.command"),
]
Setup = Annotated[
    tuple[str, ...],
    typer.Option(
        "--setup", metavar="CMD", help="A command that prepares the environment, after what its files ask for."
    ),
    of("environment.setup_commands"),
]
Env = Annotated[
    tuple[str, ...],
    typer.Option("--env", metavar="K=V", help="A variable of the environment."),
    of("environment.variables"),
]
Path_ = Annotated[
    tuple[str, ...],
    typer.Option("--path", metavar="DIR", help="A directory put first on PATH."),
    of("environment.path_directories"),
]
TestCommand = Annotated[
    str,
    typer.Option("--test-command", metavar="CMD", help="What runs the tests. Default: what the files say."),
    of("environment.test_command"),
]
NoDetect = Annotated[
    bool,
    typer.Option("--no-detect", help="Install nothing by the repository's files; --setup commands still run."),
    of("environment.disable_detection"),
]
RequireVerified = Annotated[
    bool,
    typer.Option("--require-verified", help="Only what a test or check verifies may win."),
    of("constraints.require_verified"),
]
Network = Annotated[
    tuple[str, ...],
    typer.Option("--network", metavar="HOST", help="A host that tools and checks may reach. Default: none."),
    of("constraints.network.allowed_hosts"),
]
Mode = Annotated[
    str,
    typer.Option("--mode", help="How agents plan: simple, agentic or hybrid. Default: the server's."),
    of("planning_mode"),
]
Approve = Annotated[
    str,
    typer.Option("--approve", metavar="WHAT", help="What people approve first: plan, risky or every. Default: none."),
    of("approval"),
]
Timeout = Annotated[
    int,
    typer.Option("--timeout", min=0, metavar="SECONDS", help="For the agents' work. Default: 1800."),
    of("constraints.timeout_seconds"),
]
Profiles = Annotated[
    str,
    typer.Option(
        "--profile", metavar="NAME[,NAME]", help="Model profiles of the server; the agents take them in turn."
    ),
    of("model_profile", "config.model_profile"),
]
MaxCost = Annotated[
    float,
    typer.Option("--max-cost", min=0, help="Most an agent may spend, by the profiles' prices. Default: none."),
    of("constraints.max_cost"),
]
TaskId = Annotated[
    str, typer.Option("--task-id", help="Makes the call repeatable: the same id is the same task."), of("task_id")
]
As = Annotated[
    str,
    typer.Option("--as", metavar="NAME", help="Who decides, for the log. Default: you."),
    Of(fields=("approver",), turn=lambda name: name or caller_name()),
]

# Files of tasks, and files that are written.
Hints = Annotated[bool, typer.Option("--hints", help="Give agents what is in hints_text.")]
Stagger = Annotated[float, typer.Option("--stagger", min=0, metavar="SECONDS", help="Between the beginnings of two.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: print it.")]


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
