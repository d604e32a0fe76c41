"""The gateway's composition root: HTTP in front of the gRPC services."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from services.access.book import AccessBook
from services.auth import Authenticator
from services.certificates import server_tls
from services.gateway.app import Surroundings, gateway_app
from services.gateway.observing import gateway_metrics
from services.gateway.server import serve_http
from services.gateway.upstream import open_upstream
from services.nats_figures import nats_metrics
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.runtime.channels import channel_tls, is_here, target
from swe_ai_fleet.runtime.state import open_state
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import configure_logging, open_telemetry, own_telemetry

KEYS_BUCKET = "HTTP_KEYS"
KEYS_KEPT_SECONDS = 86_400.0
KEYS_MAX_BYTES = 256 * 1024 * 1024
"""Beyond that the oldest answers are forgotten."""


@asynccontextmanager
async def open_gateway(
    settings: Settings,
    log: JetStream,
    *,
    token: str | None,
    ready: Callable[[], Awaitable[bool]],
    authenticator: Authenticator | None = None,
) -> AsyncGenerator[str]:
    """Serve in front of `settings.orchestrator_url` and `settings.context_url`; yields the base URL.

    Args:
        settings: Where the services are, and what the gateway may do.
        log: Keeps the answers to idempotency keys.
        token: The gateway's own; without `authenticator` what callers must show. None lets everybody in.
        ready: Whether the services can do their work now.
        authenticator: Knows callers by their tokens; None: there is one token.

    Raises:
        PreconditionFailed: The address cannot be bound.
    """
    keys = await log.bucket(KEYS_BUCKET, ttl_seconds=KEYS_KEPT_SECONDS, max_bytes=KEYS_MAX_BYTES)
    # The door admits callers before anything is sent: the context service may ask for a token of its own. Where it
    # takes what we take, it is shown the caller's.
    context_token = "" if settings.context_token == token else settings.context_token
    async with open_upstream(
        settings.orchestrator_url,
        settings.context_url,
        context_token=context_token,
        orchestrator_tls=channel_tls(settings, settings.orchestrator_url),
        context_tls=channel_tls(settings, settings.context_url),
    ) as upstream:
        app = gateway_app(
            Surroundings(
                settings=settings,
                upstream=upstream,
                token=token,
                ready=ready,
                keys=keys,
                authenticator=authenticator,
            )
        )
        async with serve_http(
            app, settings.http_address, elsewhere=not settings.http_listen, tls=server_tls(settings)
        ) as url:
            try:
                with gateway_metrics(own_telemetry(), app.state.streams.feeds):
                    yield url
            finally:
                await app.state.streams.close()


async def serve(settings: Settings) -> None:
    """Serve by itself until SIGINT or SIGTERM."""
    for name in ("orchestrator_url", "orchestrator_token", "context_url"):
        if not getattr(settings, name):
            raise PreconditionFailed(f"{name} is empty", field=name, hint=f"set FLEET_{name.upper()}")
    if is_here(target(settings.orchestrator_url).rpartition(":")[0].strip("[]")) and not (
        settings.alone or settings.access_file or settings.repository_roots
    ):
        raise PreconditionFailed(
            "callers from elsewhere could name every directory of this machine as a repository",
            field="repository_roots",
            hint="FLEET_REPOSITORY_ROOTS, here and for the orchestrator, or FLEET_ACCESS_FILE",
        )
    mask = secret_mask(settings)
    configure_logging(settings.log_level, settings.log_format, mask=mask)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # Its own token is the orchestrator's, not everybody's, once there is an access file.
    authenticator = await AccessBook.open(settings.access_file) if settings.access_file else None
    async with (
        open_telemetry(settings, service="fleet-gateway", mask=mask) as telemetry,
        open_state(settings, name="gateway") as state,
        nats_metrics(telemetry, state.log),
        open_gateway(
            state.settings,
            state.log,
            token=settings.orchestrator_token,
            ready=lambda: _pings(state.log),
            authenticator=authenticator,
        ),
    ):
        await stop.wait()


async def _pings(log: JetStream) -> bool:
    return (await log.ping()).ok


if __name__ == "__main__":
    asyncio.run(serve(Settings()))
