"""A log on a real NATS server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials, StreamSettings
from swe_ai_fleet.runtime.nats_server import NatsAddress


@asynccontextmanager
async def connected(
    address: NatsAddress, *, url: str = "", settings: StreamSettings | None = None, timeout: float = 15.0
) -> AsyncIterator[JetStream]:
    """A client of a server, with the fleet's streams; `url` is where it connects, if not to the server itself."""
    login = NatsCredentials(token=address.token)
    async with JetStream.connect(url or address.url, credentials=login, settings=settings, timeout=timeout) as log:
        await log.ensure_streams()
        yield log
