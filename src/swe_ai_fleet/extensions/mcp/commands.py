"""`fleet mcp`."""

from __future__ import annotations

from typing import Annotated

import typer

from swe_ai_fleet.cli.edge import run_command
from swe_ai_fleet.cli.options import Server, Token
from swe_ai_fleet.cli.screen import Exit, Screen
from swe_ai_fleet.settings import Settings


def mcp(
    *,
    allow_approve: Annotated[
        bool, typer.Option("--allow-approve", help="Let the client answer approvals, or waive them.")
    ] = False,
    server: Server = "",
    token: Token = "",
) -> None:
    async def work(_: Screen, settings: Settings) -> Exit:
        from swe_ai_fleet.extensions.mcp.server import serve

        await serve(settings, server=server, token=token, may_approve=allow_approve)
        return Exit.ACCEPTED

    run_command(work, json=False)
