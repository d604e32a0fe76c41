"""The options of `fleet batch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.place import chosen_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.settings import Settings


def batch(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="A task a line: SWE-bench records, or our own.")],
    *,
    repo: Annotated[str, typer.Option(metavar="PATH|URL", help="The repository of records that name none.")] = "",
    repo_root: options.RepoRoot = None,
    repo_template: options.RepoTemplate = "",
    parallel: Annotated[int, typer.Option(min=1, help="How many records are under way at a time.")] = 4,
    stagger: options.Stagger = 1.0,
    agents: Annotated[int, typer.Option(min=0, help="How many agents solve each. Default: the council's, or 3.")] = 0,
    rounds: options.Rounds = None,
    role: options.Role = "DEV",
    check: options.Check = None,
    setup: options.Setup = None,
    env: options.Env = None,
    network: options.Network = None,
    timeout: options.Timeout = 0,
    mode: options.Mode = "",
    profile: options.Profiles = "",
    max_cost: options.MaxCost = 0.0,
    deliver: Annotated[
        bool, typer.Option("--deliver", help="Put each winner on a branch of its repository too.")
    ] = False,
    hints: options.Hints = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Run the records' hidden tests on the winners, here, when all is done.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run those again that ended without a winner.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Begin nothing where a line holds no task.")] = False,
    name: Annotated[
        str, typer.Option(help="Of this batch; another name runs everything anew. Default: the file's.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="For results. Default: beside the file.")
    ] = None,
    model_name: Annotated[str, typer.Option(help="What predictions are labelled with.")] = "swe-ai-fleet",
    local: options.Local = False,
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

    async def run(screen: Screen, settings: Settings) -> Exit:
        if "/" in stem or not stem.strip("."):
            raise CommandFault(f"{stem!r} is no name", exit_code=Exit.USAGE, field="name")
        directory.mkdir(parents=True, exist_ok=True)
        workspaces = workspace_provider(await with_rung(settings)) if evaluate else None
        fleet = chosen_client(settings, screen, local=local, server=server, token=token)
        return await work(screen, fleet, plan, workspaces)

    carry_out(run, json=json)
