"""Which fleet a command talks to."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from swe_ai_fleet.cli.client import START_HINT, FleetClient, connect
from swe_ai_fleet.cli.exits import CommandFault, Exit, fault_of
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.settings import Settings

if TYPE_CHECKING:
    from services.orchestrator.main import RunningFleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a fleet answers and the token it asks for; `pid` is 0 where only an address was given."""

    address: str
    token: str = field(default="", repr=False)
    pid: int = 0


def running_place(home: Path) -> Place | None:
    """The fleet that runs on a home, by the card it keeps there; None without one, or when its process is gone."""
    try:
        card: object = json.loads((home / "fleet.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(card, dict):
        return None
    entries = cast("dict[str, object]", card)
    address, token, pid = entries.get("address"), entries.get("token"), entries.get("pid")
    if not isinstance(address, str) or not isinstance(token, str) or not isinstance(pid, int) or not _alive(pid):
        return None
    return Place(address=address, token=token, pid=pid)


def find_place(settings: Settings, *, server: str, token: str) -> Place | None:
    """The fleet named by an address, else the one that runs on the home.

    The home's token is sent to the address it was made for and to no other.
    """
    running = running_place(settings.home)
    if not server:
        return running
    if not token and running is not None and running.address == server:
        token = running.token
    return Place(address=server, token=token)


@asynccontextmanager
async def fleet_client(settings: Settings, *, server: str, token: str) -> AsyncGenerator[FleetClient, None]:
    """A client of a running fleet. Raises CommandFault where there is none."""
    place = find_place(settings, server=server, token=token)
    if place is None:
        raise CommandFault(f"no fleet runs on {settings.home}", exit_code=Exit.UNAVAILABLE, hint=START_HINT)
    async with connect(place.address, place.token) as client:
        yield client


@asynccontextmanager
async def local_client(settings: Settings, screen: Screen) -> AsyncGenerator[FleetClient, None]:
    """A client of the fleet that runs on the home, or of one started here and stopped at the end."""
    place = running_place(settings.home)
    if place is not None:
        screen.note(f"attached to the fleet at {place.address} (process {place.pid})")
        async with connect(place.address, place.token) as client:
            yield client
        return
    screen.note("starting NATS, Ray and the orchestrator in this process ...")
    async with started_fleet(settings.model_copy(update={"listen": "127.0.0.1:0"})) as running:
        screen.note(f"the fleet answers at {running.address}")
        async with connect(running.address, running.token) as client:
            yield client


@asynccontextmanager
async def started_fleet(settings: Settings) -> AsyncGenerator[RunningFleet, None]:
    """A fleet in this process for as long as the context lasts. Raises CommandFault where it cannot start."""
    # Only here: starting a fleet needs Ray, whose import alone takes longer than most commands.
    from services.orchestrator.main import open_fleet

    try:
        async with open_fleet(settings) as running:
            yield running
    except FleetError as error:
        raise fault_of(error, starting=True) from error


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
