"""Where the state of a fleet lies: the NATS server that settings name, or one of our own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings


@dataclass(frozen=True, kw_only=True)
class State:
    """The log, its streams made. `settings` hold the address that was really taken; `server`: that of ours."""

    settings: Settings
    log: JetStream
    server: EmbeddedNats | None = None


@asynccontextmanager
async def open_state(settings: Settings, *, name: str) -> AsyncGenerator[State]:
    """Connect to NATS under a name, or start it first, until the context ends.

    Raises PreconditionFailed and Unavailable naming the setting at fault.
    """
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        server = None
        if not settings.nats_url:
            server = await stack.enter_async_context(
                EmbeddedNats(settings.home / "nats", max_file_bytes=settings.nats_bytes)
            )
            settings = settings.model_copy(
                update={
                    "nats_url": server.address.url,
                    "nats_token": server.address.token,
                    "nats_issuer_file": server.issuer_file,
                }
            )
        log = await stack.enter_async_context(connect_log(settings, name=name))
        await log.ensure_streams()
        yield State(settings=settings, log=log, server=server)
