"""`fleet workflow`: workflows listed, checked, drawn, run and steered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.edge import carry_out, carry_out_with
from swe_ai_fleet.cli.options import Execution, Json, Server, Token
from swe_ai_fleet.cli.place import chosen_client, fleet_client

workflow_app = typer.Typer(
    help="Steps of agents, tools and people, run as one.", no_args_is_help=True, rich_markup_mode=None
)

Workflow = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="A workflow that the fleet knows, or a file (*.yaml).")
]


@workflow_app.command("list")
def list_workflows(*, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show the workflows that the fleet knows, with their inputs."""
    from swe_ai_fleet.cli.workflow_files import show_list

    carry_out_with(fleet_client, show_list, server=server, token=token, json=json)


@workflow_app.command()
def run(
    workflow: Workflow,
    *,
    given: Annotated[list[str] | None, typer.Option("--input", metavar="K=V", help="One input; repeat it.")] = None,
    inputs: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Inputs as a JSON object.")
    ] = None,
    repo: Annotated[
        str, typer.Option(metavar="PATH|URL", help="The repository to work on. Default: an empty one of the run's own.")
    ] = "",
    ref: options.Ref = "",
    include_dirty: options.IncludeDirty = None,
    task_id: Annotated[str, typer.Option(help="Makes the call repeatable: the same id is the same run.")] = "",
    approve: options.Approve = "",
    profile: Annotated[str, typer.Option(metavar="NAME", help="A model profile of the server.")] = "",
    network: options.Network = None,
    timeout: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="For each agent's work. Default: 1800.")] = 0,
    memory: Annotated[bool, typer.Option("--memory", help="Agents recall what is remembered; outcomes are.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Only hand it in; `fleet watch` shows it.")] = False,
    local: options.Local = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Run a workflow; show its nodes as they go on, then what it gave."""
    from swe_ai_fleet.cli.workflow_runs import WorkflowOrder
    from swe_ai_fleet.cli.workflow_runs import run as work

    order = WorkflowOrder(
        workflow=workflow,
        given=tuple(given or ()),
        inputs=inputs,
        repo=repo,
        ref=ref,
        uncommitted=options.UNCOMMITTED[include_dirty],
        task_id=task_id,
        approve=approve,
        profile=profile,
        network=tuple(network or ()),
        timeout_seconds=timeout,
        memory=memory,
        detach=detach,
    )

    carry_out(
        lambda screen, settings: work(
            screen, chosen_client(settings, screen, local=local, server=server, token=token), order
        ),
        json=json,
    )


@workflow_app.command()
def validate(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Workflow files.")], *, json: Json = False
) -> None:
    """Say everything that is wrong with workflow files, as `file:line: node: message`; needs no fleet."""
    from swe_ai_fleet.cli.workflow_files import validate as work

    carry_out(lambda screen, settings: work(screen, settings, paths), json=json)


@workflow_app.command()
def graph(
    workflow: Workflow,
    *,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="mermaid or svg.")] = "mermaid",
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: print it.")] = None,
    json: Json = False,
) -> None:
    """Draw a workflow; needs no fleet."""
    from swe_ai_fleet.cli.workflow_files import draw as work

    carry_out(lambda screen, settings: work(screen, settings, workflow, form=form, output=output), json=json)


@workflow_app.command()
def show(name: Execution, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show a run as it stands: its nodes, what paused ones would be given, what it gave."""
    from swe_ai_fleet.cli.workflow_runs import show as work

    carry_out_with(
        fleet_client, lambda screen, client: work(screen, client, name), server=server, token=token, json=json
    )


@workflow_app.command()
def steer(
    name: Execution,
    action: Annotated[str, typer.Argument(help="pause, step or continue.")],
    *,
    node: Annotated[str, typer.Option(help="Of step: the node to let go. Default: all that are paused.")] = "",
    by: Annotated[str, typer.Option("--as", metavar="NAME", help="Who steers, for the log. Default: you.")] = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Pause a run before its next nodes, let paused nodes go, or have it continue."""
    from swe_ai_fleet.cli.workflow_runs import steer as work

    carry_out_with(
        fleet_client,
        lambda screen, client: work(screen, client, name, action, node=node, by=by),
        server=server,
        token=token,
        json=json,
    )
