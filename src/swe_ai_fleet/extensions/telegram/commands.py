"""`fleet telegram`."""

from __future__ import annotations

from swe_ai_fleet.cli.command import Commands
from swe_ai_fleet.cli.edge import run_command
from swe_ai_fleet.cli.options import Server, Token


def telegram(*, server: Server = "", token: Token = "") -> None:
    """Serve Telegram chats (FLEET_TELEGRAM_TOKEN, FLEET_TELEGRAM_CHATS) over a running fleet, until Ctrl-C."""
    from swe_ai_fleet.extensions.telegram.serving import serve

    run_command(lambda screen, settings: serve(screen, settings, server=server, token=token), json=False, log_level="")


COMMANDS = Commands(
    code={"telegram": telegram},
    examples={"telegram": ("FLEET_TELEGRAM_TOKEN=… FLEET_TELEGRAM_CHATS=42 fleet telegram",)},
)
