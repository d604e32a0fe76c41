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
    """The log, its streams made. `settings` hold the address that was really taken; `embedded`: by a server of ours."""

    settings: Settings
    log: JetStream
    embedded: bool = False


@asynccontextmanager
async def open_state(settings: Settings, *, name: str) -> AsyncGenerator[State]:
    """Connect to NATS under a name, or start it first, until the context ends.

    Raises PreconditionFailed and Unavailable naming the setting at fault.
    """
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        embedded = not settings.nats_url
        if embedded:
            address = (await stack.enter_async_context(EmbeddedNats(settings.home / "nats"))).address
            settings = settings.model_copy(update={"nats_url": address.url, "nats_token": address.token})
        log = await stack.enter_async_context(connect_log(settings, name=name))
        await log.ensure_streams()
        yield State(settings=settings, log=log, embedded=embedded)
