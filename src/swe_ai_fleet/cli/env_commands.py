"""`fleet env`: what a repository's commands find when they run."""

from __future__ import annotations

from typing import Annotated

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.options import option
from swe_ai_fleet.cli.order import IncludeDirty
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.settings import Settings


async def explain(
    screen: Screen,
    settings: Settings,
    *,
    repo: Annotated[str, option("The repository.", metavar="PATH|URL")] = ".",
    ref: options.Ref = "",
    setup: options.Setup = (),
    env: options.Env = (),
    path: options.Path_ = (),
    test_command: options.TestCommand = "",
    no_detect: options.NoDetect = False,
    include_dirty: IncludeDirty = UncommittedChanges.REFUSE,
) -> Exit:
    from swe_ai_fleet.cli.environment import explain_environment as work
    from swe_ai_fleet.cli.environment import specification

    # What lies about uncommitted stays out, unless it is asked for.
    refused = include_dirty is UncommittedChanges.REFUSE
    uncommitted = UncommittedChanges.IGNORE if refused else include_dirty
    spec = specification(setup, env, path, test_command=test_command, detect=not no_detect)
    return await work(screen, settings, repo=repo, ref=ref, uncommitted=uncommitted, spec=spec)


async def export(
    screen: Screen,
    client: FleetClient,
    *,
    name: options.Execution,
    lock: Annotated[
        bool, option("Installed packages instead, with hashes, as pip reads them; npm's as remarks.")
    ] = False,
) -> Exit:
    from swe_ai_fleet.cli.environment import export_environment, export_lock

    work = export_lock if lock else export_environment
    return await work(screen, client, name)
