"""The composition root of the context service as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import structlog

from services.access.store import open_access, rules_of
from services.context import ContextServer, context_opener
from services.grpc_server import nats_metrics
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.runtime.channels import card_entry, channel_tls, own_address
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import read_address
from swe_ai_fleet.runtime.private_files import stored_token, write_private
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import configure_logging, open_telemetry

CARD = "context.json"
_log = structlog.get_logger(__name__)


async def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM, with the NATS server of the settings or the one that runs in the fleet's home.

    While it runs, `<home>/context.json` has the address and the token, readable by the owner only.

    Raises PreconditionFailed if the service's extension was removed.
    """
    open_context = context_opener()
    if open_context is None:
        raise PreconditionFailed("this installation has no context service: its extension `knowledge` was removed")
    mask = secret_mask(settings)
    configure_logging(settings.log_level, settings.log_format, mask=mask)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not settings.nats_url:
        nats = read_address(settings.home / "nats")
        settings = settings.model_copy(update={"nats_url": nats.url, "nats_token": nats.token})
    token = settings.context_token or stored_token(settings.home / "context-token")
    async with (
        open_telemetry(settings, service="fleet-context", mask=mask) as telemetry,
        connect_log(settings, name="context") as log,
        nats_metrics(telemetry, log),
    ):
        await log.ensure_streams()
        access = await open_access(settings, token)
        async with open_context(settings, log, token=token, authenticator=access, rules=rules_of(access)) as running:
            card = settings.home / CARD
            write_private(card, json.dumps(_card(settings, running)))
            _log.info("context.serving", address=running.address)
            try:
                await stop.wait()
            finally:
                card.unlink(missing_ok=True)


def _card(settings: Settings, running: ContextServer) -> dict[str, object]:
    tls = channel_tls(settings, own_address(settings, running.address))
    return {"address": running.address, "token": running.token, "pid": os.getpid(), "tls": card_entry(tls)}


if __name__ == "__main__":
    asyncio.run(serve(Settings()))
