"""The gateway's composition root: HTTP in front of the gRPC services."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from services.gateway.app import Surroundings, gateway_app
from services.gateway.server import serve_http
from services.gateway.upstream import open_upstream
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.runtime.state import open_state
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import configure_logging

KEYS_BUCKET = "HTTP_KEYS"
KEYS_KEPT_SECONDS = 86_400.0
KEYS_MAX_BYTES = 256 * 1024 * 1024
"""Beyond that the oldest answers are forgotten."""


@asynccontextmanager
async def open_gateway(
    settings: Settings, log: JetStream, *, token: str | None, ready: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[str]:
    """Serve in front of `settings.orchestrator_url` and `settings.context_url`; yields the base URL.

    Args:
        settings: Where the services are, and what the gateway may do.
        log: Keeps the answers to idempotency keys.
        token: What callers must show; None lets everybody in.
        ready: Whether the services can do their work now.

    Raises:
        PreconditionFailed: The address cannot be bound.
    """
    keys = await log.bucket(KEYS_BUCKET, ttl_seconds=KEYS_KEPT_SECONDS, max_bytes=KEYS_MAX_BYTES)
    # The door admits callers before anything is sent: the context service may ask for a token of its own.
    async with open_upstream(
        settings.orchestrator_url, settings.context_url, context_token=settings.context_token
    ) as upstream:
        app = gateway_app(Surroundings(settings=settings, upstream=upstream, token=token, ready=ready, keys=keys))
        async with serve_http(app, settings.http_address, elsewhere=not settings.http_listen) as url:
            try:
                yield url
            finally:
                await app.state.streams.close()


async def serve(settings: Settings) -> None:
    """Serve by itself until SIGINT or SIGTERM."""
    for name in ("orchestrator_url", "orchestrator_token", "context_url"):
        if not getattr(settings, name):
            raise PreconditionFailed(f"{name} is empty", field=name, hint=f"set FLEET_{name.upper()}")
    configure_logging(settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with (
        open_state(settings, name="gateway") as state,
        open_gateway(state.settings, state.log, token=settings.orchestrator_token, ready=lambda: _pings(state.log)),
    ):
        await stop.wait()


async def _pings(log: JetStream) -> bool:
    return (await log.ping()).ok


if __name__ == "__main__":
    asyncio.run(serve(Settings()))
