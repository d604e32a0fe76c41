"""The composition root: settings in, a serving fleet out."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.orchestrator.councils import Councils
from services.orchestrator.intake import PLANNING_BUCKET, PLANNING_KEPT_SECONDS, open_intake
from services.orchestrator.server import serve_grpc
from services.orchestrator.servicer import OrchestratorServicer
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.orchestrator.derivations import Derivations
from swe_ai_fleet.orchestrator.planning_events import PlanningEvents
from swe_ai_fleet.runtime.councils import council_models
from swe_ai_fleet.runtime.stack import open_stack
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import configure_logging


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFleet:
    """Where a fleet answers, and the tokens it asks for."""

    address: str
    token: str
    nats_url: str
    nats_token: str


@asynccontextmanager
async def open_fleet(settings: Settings) -> AsyncGenerator[RunningFleet]:
    """Start everything and serve until the context ends.

    The addresses and tokens stand in `<home>/fleet.json`, readable by the owner only, as long as it lasts.
    """
    if settings.sandbox == "none" and not settings.loopback:
        raise PreconditionFailed(
            "without a sandbox only loopback may be served", field="sandbox", hint="set FLEET_SANDBOX=auto"
        )
    async with (
        open_stack(settings) as stack,
        Derivations(fleet=stack.fleet, log=stack.log, workspaces=stack.workspaces) as derivations,
    ):
        token = _token(settings.home / "token")
        planning = PlanningEvents(
            executions=stack.executions,
            derivations=derivations,
            store=await stack.log.bucket(PLANNING_BUCKET, ttl_seconds=PLANNING_KEPT_SECONDS),
        )
        servicer = OrchestratorServicer(
            executions=stack.executions,
            blobs=stack.log,
            log=stack.log,
            components=stack.components,
            watch_live=stack.log.watch_live,
            councils=Councils(
                book=stack.councils, states=stack.executions.projection.all, models=council_models(stack.settings)
            ),
            derivations=derivations,
            planning=planning,
        )
        async with (
            serve_grpc(servicer, settings.listen, token, stack.ready) as address,
            open_intake(stack.log, stack.executions, planning),
        ):
            running = RunningFleet(
                address=address,
                token=token,
                nats_url=stack.settings.nats_url,
                nats_token=stack.settings.nats_token,
            )
            card = settings.home / "fleet.json"
            _write_private(card, json.dumps(_card(running)))
            try:
                yield running
            finally:
                card.unlink(missing_ok=True)


async def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM."""
    configure_logging(settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with open_fleet(settings):
        # Only now: Ray takes SIGTERM for itself when it starts.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await stop.wait()


def _card(running: RunningFleet) -> dict[str, object]:
    return {
        "address": running.address,
        "token": running.token,
        "nats_url": running.nats_url,
        "nats_token": running.nats_token,
        "pid": os.getpid(),
    }


def _token(path: Path) -> str:
    """The token of this home, made at the first start."""
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(32))
    return path.read_text().strip()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    draft.replace(path)


if __name__ == "__main__":
    asyncio.run(serve(Settings()))
