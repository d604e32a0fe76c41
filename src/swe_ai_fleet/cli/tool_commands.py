"""The options of `fleet tools`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.options import Json

tools_app = typer.Typer(
    help="What agents can do, and one such operation by hand.", no_args_is_help=True, rich_markup_mode=None
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
    given: Annotated[list[str] | None, typer.Argument(metavar="[K=V]...", help="Its arguments.")] = None,
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
            texts=given or (),
            arguments=args,
            role=role,
            read_only=read_only,
        ),
        json=json,
    )
