"""Finds, or starts, the fleet that a command calls."""

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
    """A client of a running fleet. Raises CommandFault without one."""
    fleet = _require(find_fleet(settings, server=server, token=token), settings)
    async with connect(fleet.address, fleet.token, tls=fleet.tls) as client:
        yield client


def home_fleet(settings: Settings) -> FleetAddress:
    """The fleet that runs on the home. Raises CommandFault without one."""
    return _require(running_fleet(settings.home), settings)


class LocalFleet(AbstractAsyncContextManager[FleetClient]):
    """A client of the fleet that runs on the home, or of one started in this process and stopped at the end.

    With `needs_model` it is not started while a model server does not answer; otherwise this is only reported.
    """

    def __init__(self, settings: Settings, screen: Screen) -> None:
        self._settings, self._screen = settings, screen
        self.needs_model = False
        self._stack = AsyncExitStack()

    @property
    def runs(self) -> bool:
        """Whether a fleet already runs on the home, which this command leaves running."""
        return running_fleet(self._settings.home) is not None

    async def __aenter__(self) -> FleetClient:
        fleet = running_fleet(self._settings.home)
        if fleet is None:
            return await self._stack.enter_async_context(self._started())
        self._screen.note(f"attached to the fleet at {fleet.address} (process {fleet.pid})")
        return await self._stack.enter_async_context(connect(fleet.address, fleet.token, tls=fleet.tls))

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._stack.__aexit__(*raised)

    @asynccontextmanager
    async def _started(self) -> AsyncGenerator[FleetClient]:
        # Imported here: other commands need neither all settings nor these checks.
        from swe_ai_fleet.cli.findings import check_start, silent_models

        level = "debug" if self._settings.log_level.lower() == "debug" else "error"
        private = self._settings.model_copy(
            update={"listen": "127.0.0.1:0", "http_listen": "off", "log_level": level, "log_format": "text"}
        )
        await check_start(private)
        for fault in await silent_models(private):
            if self.needs_model:
                raise CommandFault(fault.cause, exit_code=Exit.UNAVAILABLE, hint=fault.mend)
            self._screen.note(f"{fault.cause}; agents need it: {fault.mend}", style="yellow")
        self._screen.note("starting NATS, Ray and the orchestrator in this process ...")
        async with started_fleet(private, self._screen) as running:
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
    """A fleet in this process until the context ends. Raises CommandFault where it cannot start."""
    began = time.monotonic()
    # Imported here: importing Ray alone takes longer than most commands. A local Ray starts while the rest is
    # imported.
    from swe_ai_fleet.runtime.local_ray import ray_started

    rest = threading.Thread(target=import_module, args=("services.orchestrator.main",))
    try:
        async with AsyncExitStack() as stack:
            # Objects created by the start stay alive; the fleet freezes them at the end of it.
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
    """The settings; without a NATS URL, with that of the fleet that runs on the home.

    Raises PreconditionFailed without either.
    """
    if settings.nats_url:
        return settings
    card = read_card(settings.home / "fleet.json")
    if not (url := string(card.get("nats_url"))):
        raise PreconditionFailed(
            "the fleet's NATS is unknown", field="nats_url", hint="set FLEET_NATS_URL and FLEET_NATS_TOKEN"
        )
    return settings.model_copy(update={"nats_url": url, "nats_token": string(card.get("nats_token"))})


def _require(fleet: FleetAddress | None, settings: Settings | ClientSettings) -> FleetAddress:
    if fleet is None:
        raise CommandFault(f"no fleet runs on {settings.home}", exit_code=Exit.UNAVAILABLE, hint=START_HINT)
    return fleet
