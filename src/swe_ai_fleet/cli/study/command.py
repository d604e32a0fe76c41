"""The options of `fleet study`."""

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

_MOST_CANDIDATES = 300


def study(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="A task a line, as fleet batch takes them.")],
    *,
    candidates: Annotated[
        str, typer.Option(metavar="N,N,…", help="With how many candidates each task is run.")
    ] = "1,3,5",
    without: Annotated[
        str,
        typer.Option(
            metavar="PART,…",
            help="Once more with the most candidates and without reviews (revisions and votes too), without probes.",
        ),
    ] = "",
    repeats: Annotated[int, typer.Option(min=1, help="How often each task is run with each number.")] = 1,
    rounds: options.Rounds = None,
    repo: Annotated[str, typer.Option(metavar="PATH|URL", help="The repository of records that name none.")] = "",
    repo_root: options.RepoRoot = None,
    repo_template: options.RepoTemplate = "",
    parallel: Annotated[int, typer.Option(min=1, help="How many tasks are under way at a time.")] = 4,
    stagger: options.Stagger = 1.0,
    role: options.Role = "DEV",
    check: options.Check = None,
    setup: options.Setup = None,
    env: options.Env = None,
    network: options.Network = None,
    timeout: options.Timeout = 0,
    mode: options.Mode = "",
    profile: options.Profiles = "",
    max_cost: options.MaxCost = 0.0,
    hints: options.Hints = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Run the records' hidden tests on the winners, here.")
    ] = False,
    name: Annotated[
        str, typer.Option(help="Of this study; another name runs everything anew. Default: the file's.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="For results. Default: NAME.study by the file.")
    ] = None,
    local: options.Local = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Measure what deliberation is worth: run tasks with 1, 3, 5 candidates, compare pass rates and cost."""
    from swe_ai_fleet.cli.batch.plan import Plan
    from swe_ai_fleet.cli.study.run import Study, parts
    from swe_ai_fleet.cli.study.run import study as work
    from swe_ai_fleet.runtime.factories import workspace_provider
    from swe_ai_fleet.runtime.sandboxes import with_rung

    order = Order(
        description="",
        probes=True,
        rounds=rounds,
        role=role,
        checks=tuple(check or ()),
        setup=tuple(setup or ()),
        variables=tuple(env or ()),
        network=tuple(network or ()),
        timeout_seconds=timeout,
        deliberate_only=True,
        mode=mode,
        profile=profile,
        max_cost=max_cost,
    )
    stem = name or file.name.removesuffix(".jsonl")
    directory = output or file.parent / f"{stem}.study"
    plan = Plan(
        file=file,
        name=stem,
        order=order,
        results=directory / "results.jsonl",
        predictions=directory / "preds.json",
        repo=repo,
        repo_root=repo_root,
        repo_template=repo_template,
        parallel=parallel,
        stagger=stagger,
        hints=hints,
        evaluate=evaluate,
    )

    async def run(screen: Screen, settings: Settings) -> Exit:
        if "/" in stem or not stem.strip("."):
            raise CommandFault(f"{stem!r} is no name", exit_code=Exit.USAGE, field="name")
        wanted = Study(
            plan=plan,
            candidates=numbers(candidates),
            without=parts(without),
            repeats=repeats,
            directory=directory,
        )
        workspaces = workspace_provider(await with_rung(settings)) if evaluate else None
        fleet = chosen_client(settings, screen, local=local, server=server, token=token)
        return await work(screen, fleet, wanted, workspaces)

    carry_out(run, json=json)


def numbers(text: str) -> tuple[int, ...]:
    """Numbers of candidates as they were given, each once, from few to many. Raises CommandFault."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(len(part) < 4 and part.isascii() and part.isdigit() for part in parts):
        raise CommandFault(
            f"{text[:80]!r} are no numbers of candidates", exit_code=Exit.USAGE, field="candidates", hint="like 1,3,5"
        )
    found = sorted({int(part) for part in parts})
    if not 1 <= found[0] <= found[-1] <= _MOST_CANDIDATES:
        raise CommandFault(
            f"{text[:80]} is out of range", exit_code=Exit.USAGE, field="candidates", hint=f"1 to {_MOST_CANDIDATES}"
        )
    return tuple(found)
