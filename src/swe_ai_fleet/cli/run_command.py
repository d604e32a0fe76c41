"""The options of `fleet run`."""

from __future__ import annotations

from typing import Annotated

import typer

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.place import chosen_client


def run(
    task: Annotated[str, typer.Argument(help="What is to be done, in your own words.")],
    *,
    repo: Annotated[str, typer.Option(metavar="PATH|URL", help="The repository to work on.")] = ".",
    ref: options.Ref = "",
    credential: Annotated[
        str, typer.Option(metavar="NAME", help="Which of the server's credentials opens a URL. Default: its host's.")
    ] = "",
    agents: Annotated[int, typer.Option(min=0, help="How many agents solve it. Default: the council's, or 3.")] = 0,
    max_agents: Annotated[
        int, typer.Option(min=0, help="Further agents begin, up to so many, while no candidate is convincing.")
    ] = 0,
    no_probes: Annotated[
        bool, typer.Option("--no-probes", help="Make no probes from the task's words to run on every candidate.")
    ] = False,
    rounds: options.Rounds = None,
    role: options.Role = "DEV",
    check: options.Check = None,
    setup: options.Setup = None,
    env: options.Env = None,
    path: options.Path_ = None,
    test_command: options.TestCommand = "",
    no_detect: options.NoDetect = False,
    network: options.Network = None,
    require_verified: options.RequireVerified = False,
    branch: Annotated[str, typer.Option(help="The branch the winner is put on. Default: fleet/<task id>.")] = "",
    include_dirty: options.IncludeDirty = None,
    task_id: Annotated[str, typer.Option(help="Makes the call repeatable: the same id is the same task.")] = "",
    timeout: options.Timeout = 0,
    deliberate_only: Annotated[bool, typer.Option("--deliberate-only", help="Rank candidates, apply nothing.")] = False,
    approve: options.Approve = "",
    mode: options.Mode = "",
    profile: options.Profiles = "",
    max_cost: options.MaxCost = 0.0,
    priority: Annotated[int, typer.Option(min=0, max=9, help="Of what waits, higher goes first.")] = 0,
    architect: Annotated[
        int, typer.Option(min=0, max=16, metavar="K", help="Let an architect choose among the best K. Default: votes.")
    ] = 0,
    subtasks: Annotated[
        bool, typer.Option("--subtasks", help="Split the task first; merge what the parts come to.")
    ] = False,
    recall: Annotated[bool, typer.Option("--recall", help="Give agents what is remembered that fits.")] = False,
    remember: Annotated[bool, typer.Option("--remember", help="Remember what comes of it.")] = False,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Where memories are: fleet, agent:ID, repository:NAME. Default: this one's.",
        ),
    ] = None,
    entity: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Agents get what is remembered of it; may be repeated. Means --recall."),
    ] = None,
    story: Annotated[str, typer.Option(metavar="ID", help="The story it belongs to, whose context agents get.")] = "",
    upload: Annotated[
        bool, typer.Option("--upload", help="Send the repository there; by itself for a server on another machine.")
    ] = False,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="After an upload, put the winner's branch into the repository.")
    ] = False,
    local: options.Local = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Let several agents solve a task; show the verdict, the winner, its diff and its branch."""
    from swe_ai_fleet.cli.run import run as work

    order = Order(
        description=task,
        repo=repo,
        ref=ref,
        credential=credential,
        agents=agents,
        max_agents=max_agents,
        probes=not no_probes,
        rounds=rounds,
        role=role,
        checks=tuple(check or ()),
        setup=tuple(setup or ()),
        variables=tuple(env or ()),
        path=tuple(path or ()),
        test_command=test_command,
        detect=not no_detect,
        network=tuple(network or ()),
        require_verified=require_verified,
        branch=branch,
        uncommitted=options.UNCOMMITTED[include_dirty],
        task_id=task_id,
        timeout_seconds=timeout,
        deliberate_only=deliberate_only,
        approve=approve,
        mode=mode,
        profile=profile,
        max_cost=max_cost,
        priority=priority,
        architect=architect,
        subtasks=subtasks,
        recall=recall,
        remember=remember,
        namespaces=tuple(namespace or ()),
        entities=tuple(entity or ()),
        story=story,
        upload=upload,
        fetch=fetch,
    )

    carry_out(
        lambda screen, settings: work(
            screen, chosen_client(settings, screen, local=local, server=server, token=token), order
        ),
        json=json,
    )
