"""The `fleet` command."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.place import fleet_client, local_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.settings import Settings

app = typer.Typer(
    name="fleet",
    help="Several coding agents solve a task in parallel; evidence picks the winner; every step is audited.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit codes: 0 accepted, 1 no candidate passed, 2 bad usage, 3 a dependency is down, "
    "4 cancelled or timed out, 5 rejected.",
)
audit_app = typer.Typer(help="What the agents did, proven.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(audit_app, name="audit")
tools_app = typer.Typer(
    help="What agents can do, and one such operation by hand.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(tools_app, name="tools")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Server = Annotated[
    str, typer.Option("--server", envvar="FLEET_SERVER", metavar="HOST:PORT", help="A fleet other than this home's.")
]
Token = Annotated[str, typer.Option(envvar="FLEET_TOKEN", hidden=True)]
Name = Annotated[str, typer.Argument(metavar="ID", help="An execution id, or a task id for its newest execution.")]


@app.command()
def up(*, json: Json = False) -> None:
    """Start NATS, Ray and the orchestrator here, until Ctrl-C."""
    from swe_ai_fleet.cli.up import up as work

    carry_out(work, json=json, log_level="")


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="What is to be done, in your own words.")],
    *,
    repo: Annotated[str, typer.Option(metavar="PATH|URL", help="The repository to work on.")] = ".",
    ref: Annotated[str, typer.Option(help="Branch, tag or commit to start from. Default: what is checked out.")] = "",
    agents: Annotated[int, typer.Option(min=0, help="How many agents solve it. Default: 3.")] = 0,
    rounds: Annotated[int | None, typer.Option(min=0, help="Rounds of peer review. Default: 1.")] = None,
    role: Annotated[str, typer.Option(help="DEV, QA, ARCHITECT, DEVOPS or DATA.")] = "DEV",
    check: Annotated[
        list[str] | None, typer.Option(metavar="CMD", help="A command a candidate must pass. Default: the tests.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(metavar="CMD", help="A command that prepares the environment, once.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A variable of the environment.")] = None,
    path: Annotated[list[str] | None, typer.Option(metavar="DIR", help="A directory put first on PATH.")] = None,
    network: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A host that tools and checks may reach. Default: none.")
    ] = None,
    branch: Annotated[str, typer.Option(help="The branch the winner is put on. Default: fleet/<task id>.")] = "",
    include_dirty: Annotated[
        bool | None,
        typer.Option("--include-dirty/--ignore-dirty", help="Start from uncommitted changes too, or without them."),
    ] = None,
    task_id: Annotated[str, typer.Option(help="Makes the call repeatable: the same id is the same task.")] = "",
    timeout: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="For the agents' work. Default: 1800.")] = 0,
    deliberate_only: Annotated[bool, typer.Option("--deliberate-only", help="Rank candidates, apply nothing.")] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Without a running fleet, start one in this process and stop it again.")
    ] = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Let several agents solve a task; show the winner, its checks, its diff and its branch."""
    from swe_ai_fleet.cli.run import run as work

    dirty = {None: UncommittedChanges.REFUSE, True: UncommittedChanges.INCLUDE, False: UncommittedChanges.IGNORE}
    order = Order(
        description=task,
        repo=repo,
        ref=ref,
        agents=agents,
        rounds=rounds,
        role=role,
        checks=tuple(check or ()),
        setup=tuple(setup or ()),
        variables=tuple(env or ()),
        path=tuple(path or ()),
        network=tuple(network or ()),
        branch=branch,
        uncommitted=dirty[include_dirty],
        task_id=task_id,
        timeout_seconds=timeout,
        deliberate_only=deliberate_only,
    )

    def fleet(screen: Screen, settings: Settings) -> AbstractAsyncContextManager[FleetClient]:
        if local and not server:
            return local_client(settings, screen)
        return fleet_client(settings, server=server, token=token)

    carry_out(lambda screen, settings: work(screen, fleet(screen, settings), order), json=json)


@app.command()
def watch(name: Name, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show an execution as it happens; with --json a line for each event."""
    from swe_ai_fleet.cli.run import watch as work

    carry_out(
        lambda screen, settings: work(screen, fleet_client(settings, server=server, token=token), name), json=json
    )


@app.command("list")
def list_executions(
    *,
    task_id: Annotated[str, typer.Option(help="Only this task's.")] = "",
    status: Annotated[list[str] | None, typer.Option(help="Only those with this status; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many, the newest.")] = 50,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List executions, the newest first."""
    from swe_ai_fleet.cli.executions import show_list

    carry_out(
        lambda screen, settings: show_list(
            screen,
            fleet_client(settings, server=server, token=token),
            task_id=task_id,
            statuses=tuple(status or ()),
            limit=limit,
        ),
        json=json,
    )


@app.command()
def show(name: Name, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show an execution as it stands: candidates, evidence, diff, branch."""
    from swe_ai_fleet.cli.executions import show_one

    carry_out(
        lambda screen, settings: show_one(screen, fleet_client(settings, server=server, token=token), name), json=json
    )


@app.command()
def cancel(
    name: Name,
    *,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "cancelled from the command line",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Stop an execution's agents and their processes."""
    from swe_ai_fleet.cli.executions import cancel as work

    carry_out(
        lambda screen, settings: work(screen, fleet_client(settings, server=server, token=token), name, reason=reason),
        json=json,
    )


@app.command()
def doctor(*, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Try everything the fleet stands on, and say what is wrong and how to mend it."""
    from swe_ai_fleet.cli.doctor import doctor as work

    carry_out(lambda screen, settings: work(screen, settings, server=server, token=token), json=json)


@audit_app.command()
def verify(
    name: Annotated[
        str,
        typer.Argument(metavar="ID|FILE", help="An execution id, a task id, or an audit file of `fleet tools run`."),
    ],
    *,
    head: Annotated[str, typer.Option(metavar="HASH", help="Of a file: what its last entry's hash must be.")] = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Recompute every agent's audit chain from the log, or that of a file; exit code 1 where one does not fit."""
    if name.endswith(".jsonl"):
        from swe_ai_fleet.cli.tools import verify_audit_file

        carry_out(lambda screen, _: verify_audit_file(screen, Path(name), head=head), json=json)
    from swe_ai_fleet.cli.executions import verify_audit

    carry_out(
        lambda screen, settings: verify_audit(screen, fleet_client(settings, server=server, token=token), name),
        json=json,
    )


@tools_app.command("list")
def list_tools(
    *,
    role: Annotated[str, typer.Option(help="Only what this role gets: DEV, QA, ARCHITECT, DEVOPS or DATA.")] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Only what a run without changes gets.")] = False,
    json: Json = False,
) -> None:
    """Show every operation with its traits."""
    from swe_ai_fleet.cli.tools import show_tools

    carry_out(lambda screen, _: show_tools(screen, role=role, read_only=read_only), json=json)


@tools_app.command("run")
def run_tool(
    operation: Annotated[str, typer.Argument(help="Its name, such as files_read_file.")],
    pairs: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its arguments.")] = None,
    *,
    workspace: Annotated[str, typer.Option(metavar="DIR", help="The directory it works in.")] = ".",
    args: Annotated[str, typer.Option(metavar="JSON", help="Arguments as a JSON object.")] = "",
    role: Annotated[str, typer.Option(help="The role it is called in.")] = "DEV",
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse whatever could change something.")] = False,
    json: Json = False,
) -> None:
    """Run one operation in the sandbox, audited; exit code 1 where it fails or is refused, 2 for wrong arguments."""
    from swe_ai_fleet.cli.tools import run_tool as work

    carry_out(
        lambda screen, settings: work(
            screen,
            settings,
            operation=operation,
            workspace=Path(workspace),
            pairs=tuple(pairs or ()),
            arguments=args,
            role=role,
            read_only=read_only,
        ),
        json=json,
    )


if __name__ == "__main__":
    app()
