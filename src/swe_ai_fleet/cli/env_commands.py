"""The options of `fleet env`."""

from __future__ import annotations

from typing import Annotated

import typer

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.edge import carry_out, carry_out_with
from swe_ai_fleet.cli.options import Execution, Json, Server, Token
from swe_ai_fleet.cli.place import fleet_client

env_app = typer.Typer(
    help="What a repository's commands find when they run.", no_args_is_help=True, rich_markup_mode=None
)


@env_app.callback()
def env() -> None:
    """What a repository's commands find when they run."""


@env_app.command("explain")
def explain(
    *,
    repo: Annotated[str, typer.Option(metavar="PATH|URL", help="The repository.")] = ".",
    ref: options.Ref = "",
    setup: options.Setup = None,
    env: options.Env = None,
    path: options.Path_ = None,
    test_command: options.TestCommand = "",
    no_detect: options.NoDetect = False,
    include_dirty: options.IncludeDirty = None,
    json: Json = False,
) -> None:
    """Build a repository's environment, or take it from the cache; say what was decided and what each step did."""
    from swe_ai_fleet.cli.environment import explain_environment as work
    from swe_ai_fleet.cli.environment import specification

    carry_out(
        lambda screen, settings: work(
            screen,
            settings,
            repo=repo,
            ref=ref,
            uncommitted=options.UNCOMMITTED[bool(include_dirty)],
            spec=specification(setup, env, path, test_command=test_command, detect=not no_detect),
        ),
        json=json,
    )


@env_app.command("export")
def export(
    *,
    name: Execution,
    lock: Annotated[
        bool,
        typer.Option("--lock", help="Installed packages instead, with hashes, as pip reads them; npm's as remarks."),
    ] = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Print the options that give what an environment run found out, for `fleet run`, `judge` and `env explain`."""
    from swe_ai_fleet.cli.environment import export_environment, export_lock

    work = export_lock if lock else export_environment
    carry_out_with(
        fleet_client, lambda screen, client: work(screen, client, name), server=server, token=token, json=json
    )
