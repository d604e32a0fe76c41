"""`fleet up`: everything on this machine, until Ctrl-C."""

from __future__ import annotations

import os

from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.interrupts import interrupts
from swe_ai_fleet.cli.place import started_fleet
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.web import page_url
from swe_ai_fleet.runtime.place import running_place
from swe_ai_fleet.settings import Settings


async def up(screen: Screen, settings: Settings) -> Exit:
    """Start NATS, Ray and the orchestrator, say where they answer, and stop them at Ctrl-C or SIGTERM."""
    running = running_place(settings.home)
    if running is not None:
        raise CommandFault(
            f"a fleet runs on {settings.home} already: {running.address}, process {running.pid}",
            exit_code=Exit.USAGE,
            hint="use it, stop it, or set FLEET_HOME to another directory",
        )
    screen.note("starting NATS, Ray and the orchestrator ...")
    with interrupts() as signals:
        async with started_fleet(settings) as fleet:
            card = settings.home / "fleet.json"
            page = page_url(fleet.http, fleet.token) if fleet.http else ""
            if screen.json:
                screen.document(
                    {
                        "address": fleet.address,
                        "context": fleet.context,
                        "http": fleet.http,
                        "page": page,
                        "nats_url": fleet.nats_url,
                        "model_url": settings.model_url,
                        "card": str(card),
                        "pid": os.getpid(),
                    }
                )
            else:
                screen.line(f"gRPC    {fleet.address}", style="bold")
                screen.line(f"page    {page or 'none; FLEET_HTTP_LISTEN is off'}", style="bold")
                screen.line(f"context {fleet.context}")
                screen.line(f"NATS    {fleet.nats_url}")
                screen.line(f"model   {settings.model_url or 'none; set FLEET_MODEL_URL'}")
                screen.line(f"tokens  {card}")
                screen.line('try     fleet run --repo . "what to do"')
                screen.note("Ctrl-C stops everything")
            await signals.wait()
            screen.note("stopping ...")
    return Exit.ACCEPTED
