"""`fleet workflow`: workflows checked, drawn, run and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import Fleet, FleetClient
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.workflow_order import Workflow, WorkflowOrder
from swe_ai_fleet.settings import Settings


async def run(screen: Screen, fleet: Fleet, order: WorkflowOrder) -> Exit:
    """Run a workflow; show its nodes as they go on, then what it gave."""
    from swe_ai_fleet.cli.workflow_runs import run as work

    return await work(screen, fleet, order)


async def validate(
    screen: Screen,
    settings: Settings,
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Workflow files.")],
) -> Exit:
    """Say everything that is wrong with workflow files, as `file:line: node: message`; needs no fleet."""
    from swe_ai_fleet.cli.workflow_files import validate as work

    return await work(screen, settings, paths)


async def graph(
    screen: Screen,
    settings: Settings,
    workflow: Workflow,
    *,
    output: options.Output = None,
) -> Exit:
    """Draw a workflow as Mermaid text; needs no fleet."""
    from swe_ai_fleet.cli.workflow_files import draw as work

    return await work(screen, settings, workflow, output=output)


async def show(screen: Screen, client: FleetClient, name: options.Execution) -> Exit:
    """Show a run as it stands: its nodes, what paused ones would be given, what it gave."""
    from swe_ai_fleet.cli.workflow_runs import show as work

    return await work(screen, client, name)
