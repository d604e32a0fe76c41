"""`fleet telegram`."""

from __future__ import annotations

from swe_ai_fleet.cli.edge import run_command
from swe_ai_fleet.cli.options import Server, Token


def telegram(*, server: Server = "", token: Token = "") -> None:
    from swe_ai_fleet.extensions.chat.telegram.serving import serve

    run_command(lambda screen, settings: serve(screen, settings, server=server, token=token), json=False, log_level="")
