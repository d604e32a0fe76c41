"""Which fleet a command talks to."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from swe_ai_fleet.cli.client import START_HINT, FleetClient, connect
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen, fault_of
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.domain.json_values import string
from swe_ai_fleet.runtime.channels import FleetAddress, find_fleet, read_card, running_fleet

if TYPE_CHECKING:
    from services.orchestrator.main import RunningFleet
    from swe_ai_fleet.client_settings import ClientSettings
    from swe_ai_fleet.settings import Settings


@asynccontextmanager
async def fleet_client(
    settings: Settings | ClientSettings, *, server: str, token: str
) -> AsyncGenerator[FleetClient, None]:
    """A client of a running fleet. Raises CommandFault where there is none."""
    place = _there(find_fleet(settings, server=server, token=token), settings)
    async with connect(place.address, place.token, tls=place.tls) as client:
        yield client


def home_fleet(settings: Settings) -> FleetAddress:
    """The fleet that runs on the home. Raises CommandFault where none does."""
    return _there(running_fleet(settings.home), settings)


class LocalFleet(AbstractAsyncContextManager[FleetClient]):
    """A client of the fleet that runs on the home, or of one started here and stopped at the end.

    `needs_model`: it is not started where nobody listens at a model server; otherwise that is only said.
    """

    def __init__(self, settings: Settings, screen: Screen) -> None:
        self._settings, self._screen = settings, screen
        self.needs_model = False
        self._stack = AsyncExitStack()

    @property
    def runs(self) -> bool:
        """Whether one runs there already, and goes on without us."""
        return running_fleet(self._settings.home) is not None

    async def __aenter__(self) -> FleetClient:
        place = running_fleet(self._settings.home)
        if place is None:
            return await self._stack.enter_async_context(self._started())
        self._screen.note(f"attached to the fleet at {place.address} (process {place.pid})")
        return await self._stack.enter_async_context(connect(place.address, place.token, tls=place.tls))

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._stack.__aexit__(*raised)

    @asynccontextmanager
    async def _started(self) -> AsyncGenerator[FleetClient]:
        # Only here, as other commands need neither settings nor what looks at them.
        from swe_ai_fleet.cli.findings import check_start, silent_models

        level = "debug" if self._settings.log_level.lower() == "debug" else "error"
        alone = self._settings.model_copy(
            update={"listen": "127.0.0.1:0", "http_listen": "off", "log_level": level, "log_format": "text"}
        )
        await check_start(alone)
        for fault in await silent_models(alone):
            if self.needs_model:
                raise CommandFault(fault.cause, exit_code=Exit.UNAVAILABLE, hint=fault.mend)
            self._screen.note(f"{fault.cause}; agents need it: {fault.mend}", style="yellow")
        self._screen.note("starting NATS, Ray and the orchestrator in this process ...")
        async with started_fleet(alone, self._screen) as running:
            self._screen.note(f"the fleet answers at {running.address}")
            async with connect(running.address, running.token, tls=running.tls) as client:
                yield client


def chosen_client(
    settings: Settings, screen: Screen, *, local: bool, server: str, token: str
) -> AbstractAsyncContextManager[FleetClient]:
    """A client of the fleet that the options --local and --server choose."""
    if local and not server:
        return LocalFleet(settings, screen)
    return fleet_client(settings, server=server, token=token)


@asynccontextmanager
async def started_fleet(settings: Settings, screen: Screen) -> AsyncGenerator[RunningFleet, None]:
    """A fleet in this process for as long as the context lasts. Raises CommandFault where it cannot start."""
    began = time.monotonic()
    # Only here: starting a fleet needs Ray, whose import alone takes longer than most commands. A Ray of our own is
    # waited for while the rest is imported.
    from swe_ai_fleet.runtime.local_ray import ray_started

    rest = threading.Thread(target=import_module, args=("services.orchestrator.main",))
    try:
        async with AsyncExitStack() as stack:
            # What a start leaves stays; the fleet freezes it in its end.
            gc.disable()
            stack.callback(gc.enable)
            rest.start()
            try:
                await stack.enter_async_context(ray_started(settings))
            finally:
                await asyncio.to_thread(rest.join)
            from services.orchestrator.main import open_fleet
            from swe_ai_fleet.runtime.tool_services import secret_mask
            from swe_ai_fleet.telemetry import configure_logging

            configure_logging(settings.log_level, settings.log_format, mask=secret_mask(settings))
            screen.note(f"  code and Ray: {time.monotonic() - began:.1f} s")
            running = await stack.enter_async_context(open_fleet(settings, lambda phase: screen.note(f"  {phase}")))
            gc.enable()
            yield running
    except FleetError as error:
        raise fault_of(error, starting=True) from error


def nats_of(settings: Settings) -> Settings:
    """The settings with the NATS server of the fleet that runs on the home, where they name none.

    Raises PreconditionFailed where there is neither.
    """
    if settings.nats_url:
        return settings
    card = read_card(settings.home / "fleet.json")
    if not (url := string(card.get("nats_url"))):
        raise PreconditionFailed(
            "where the fleet's NATS is cannot be told", field="nats_url", hint="set FLEET_NATS_URL and FLEET_NATS_TOKEN"
        )
    return settings.model_copy(update={"nats_url": url, "nats_token": string(card.get("nats_token"))})


def _there(place: FleetAddress | None, settings: Settings | ClientSettings) -> FleetAddress:
    if place is None:
        raise CommandFault(f"no fleet runs on {settings.home}", exit_code=Exit.UNAVAILABLE, hint=START_HINT)
    return place
