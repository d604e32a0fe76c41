"""The options of `fleet batch`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.place import fleet_client, local_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.settings import Settings


def batch(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="A task a line: SWE-bench records, or our own.")],
    *,
    repo: Annotated[str, typer.Option(metavar="PATH|URL", help="The repository of records that name none.")] = "",
    repo_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Has clones of owner/name: owner/name, owner__name or name.")
    ] = None,
    repo_template: Annotated[
        str, typer.Option(metavar="URL", help="Where owner/name is cloned from, with {repo} in its place.")
    ] = "",
    parallel: Annotated[int, typer.Option(min=1, help="How many records are under way at a time.")] = 4,
    stagger: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Between the beginnings of two.")] = 1.0,
    agents: Annotated[int, typer.Option(min=0, help="How many agents solve each. Default: the council's, or 3.")] = 0,
    rounds: Annotated[
        int | None, typer.Option(min=0, help="Rounds of peer review. Default: the council's, or 1.")
    ] = None,
    role: Annotated[str, typer.Option(help="DEV, QA, ARCHITECT, DEVOPS or DATA.")] = "DEV",
    check: Annotated[
        list[str] | None, typer.Option(metavar="CMD", help="A command a candidate must pass. Default: the tests.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(metavar="CMD", help="A command that prepares the environment, once.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A variable of the environment.")] = None,
    network: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A host that tools and checks may reach. Default: none.")
    ] = None,
    timeout: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="For the agents' work. Default: 1800.")] = 0,
    mode: Annotated[str, typer.Option(help="How agents plan: simple, agentic or hybrid. Default: the server's.")] = "",
    profile: Annotated[
        str, typer.Option(metavar="NAME[,NAME]", help="Model profiles of the server; the agents take them in turn.")
    ] = "",
    max_cost: Annotated[float, typer.Option(min=0, help="Most money an agent may spend. Default: no limit.")] = 0.0,
    deliver: Annotated[
        bool, typer.Option("--deliver", help="Put each winner on a branch of its repository too.")
    ] = False,
    hints: Annotated[bool, typer.Option("--hints", help="Give agents what is in hints_text.")] = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Run the records' hidden tests on the winners, here, when all is done.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run those again that ended without an accepted candidate.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Begin nothing where a line holds no task.")] = False,
    name: Annotated[
        str, typer.Option(help="Of this batch; another name runs everything anew. Default: the file's.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="For results. Default: beside the file.")
    ] = None,
    model_name: Annotated[str, typer.Option(help="What predictions are labelled with.")] = "swe-ai-fleet",
    local: Annotated[
        bool, typer.Option("--local", help="Without a running fleet, start one in this process and stop it again.")
    ] = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Run many tasks from a file; go on where it stopped; keep results and predictions beside the file."""
    from swe_ai_fleet.cli.batch.plan import Plan
    from swe_ai_fleet.cli.batch.run import batch as work
    from swe_ai_fleet.runtime.factories import workspace_provider
    from swe_ai_fleet.runtime.sandboxes import with_rung

    order = Order(
        description="",
        agents=agents,
        rounds=rounds,
        role=role,
        checks=tuple(check or ()),
        setup=tuple(setup or ()),
        variables=tuple(env or ()),
        network=tuple(network or ()),
        timeout_seconds=timeout,
        deliberate_only=not deliver,
        mode=mode,
        profile=profile,
        max_cost=max_cost,
    )
    directory = output or file.parent
    stem = name or file.name.removesuffix(".jsonl")
    plan = Plan(
        file=file,
        name=stem,
        order=order,
        results=directory / f"{stem}.results.jsonl",
        predictions=directory / f"{stem}.preds.json",
        repo=repo,
        repo_root=repo_root,
        repo_template=repo_template,
        parallel=parallel,
        stagger=stagger,
        retry=retry,
        strict=strict,
        hints=hints,
        evaluate=evaluate,
        model=model_name,
    )

    def fleet(screen: Screen, settings: Settings) -> AbstractAsyncContextManager[FleetClient]:
        if local and not server:
            return local_client(settings, screen)
        return fleet_client(settings, server=server, token=token)

    async def run(screen: Screen, settings: Settings) -> Exit:
        if "/" in stem or not stem.strip("."):
            raise CommandFault(f"{stem!r} is no name", exit_code=Exit.USAGE, field="name")
        directory.mkdir(parents=True, exist_ok=True)
        workspaces = workspace_provider(await with_rung(settings)) if evaluate else None
        return await work(screen, fleet(screen, settings), plan, workspaces)

    carry_out(run, json=json)
