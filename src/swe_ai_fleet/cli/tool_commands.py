"""`fleet tools`: what agents can do, and one such operation by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.settings import Settings


async def list_tools(
    screen: Screen,
    *,
    role: Annotated[str, option("Only what this role gets: DEV, QA, ARCHITECT, DEVOPS or DATA.")] = "",
    read_only: Annotated[bool, option("Only what a run without changes gets.")] = False,
) -> Exit:
    from swe_ai_fleet.cli.tools import show_tools

    return await show_tools(screen, role=role, read_only=read_only)


async def run_tool(
    screen: Screen,
    settings: Settings,
    operation: Annotated[str, argument("Its name, such as files_read_file.")],
    given: Annotated[tuple[str, ...], argument("Its arguments.", metavar="[K=V]...")] = (),
    *,
    workspace: Annotated[str, option("The directory it works in.", metavar="DIR")] = ".",
    args: Annotated[str, option("Arguments as a JSON object.", metavar="JSON")] = "",
    role: Annotated[str, option("The role it is called in.")] = "DEV",
    read_only: Annotated[bool, option("Refuse whatever could change something.")] = False,
) -> Exit:
    from swe_ai_fleet.cli.tools import run_tool as work

    return await work(
        screen,
        settings,
        operation=operation,
        workspace=Path(workspace),
        texts=given,
        arguments=args,
        role=role,
        read_only=read_only,
    )
