"""What operators have taken out of work: orchestrators, hosts of agents, machines of the Ray cluster.

A drain lies in NATS, the same for every orchestrator, and holds across their restarts. Orchestrators that are drained
take no execution; hosts and machines that are, no agent. What is at work ends there, or is moved once the drain's time
is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

import structlog

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import Fenced
from swe_ai_fleet.following import Follower, in_background
from swe_ai_fleet.orchestrator.dispatcher import Dispatcher
from swe_ai_fleet.ports import KeyValue, KeyValueChange
from swe_ai_fleet.runtime.lease_keeper import LeaseKeeper

BUCKET = "drains"
KEPT_SECONDS = 30 * 86_400.0
"""What is drained rarely comes back: names of orchestrators and Ray nodes are used once."""
_LOOK_SECONDS = 0.5
_log = structlog.get_logger(__name__)


class DrainTarget(StrEnum):
    ORCHESTRATOR = "orchestrator"
    HOST = "host"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Since `at` (seconds since 1970), by whom; what is at work `within` seconds after that is moved (0: never)."""

    at: float
    by: str = ""
    within: float = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing is waited for any more."""
        return bool(self.within) and time.time() > self.at + self.within


class Drains:
    """The drains there are, followed. Made by `open_drains`."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self._held: dict[str, Drain] = {}
        self.follower = Follower[KeyValueChange](
            "the list of drains",
            lambda start: store.changes(from_revision=start, follow=True),
            self._take,
            hint="restart the orchestrator",
        )

    def get(self, target: DrainTarget, name: str) -> Drain | None:
        """The drain of something; None where it works. Hosts are named `REPLICA.HOST`, nodes by their id."""
        return self._held.get(f"{target}.{name}")

    def names(self, target: DrainTarget) -> set[str]:
        """Everything of a kind that is drained."""
        return {key.partition(".")[2] for key in self._held if key.startswith(f"{target}.")}

    async def begin(self, target: DrainTarget, name: str, *, by: str = "", within: float = 0.0) -> None:
        """Drain something; one that is drained already stays so as it was. Raises Unavailable."""
        with suppress(Fenced):
            await self._store.put(f"{target}.{name}", to_json(Drain(at=time.time(), by=by, within=within)), revision=0)
            _log.info("drains.begun", target=target, name=name, by=by, within=within)

    async def undo(self, target: DrainTarget, name: str) -> None:
        """Let something work again. Raises Unavailable."""
        await self._store.delete(f"{target}.{name}")
        _log.info("drains.undone", target=target, name=name)

    def _take(self, change: KeyValueChange) -> int:
        self._held.pop(change.key, None)
        if change.value is not None:
            try:
                self._held[change.key] = from_json(Drain, change.value)
            except ValueError:
                _log.warning("drains.unreadable", key=change.key)
        return change.revision


@asynccontextmanager
async def open_drains(log: JetStream) -> AsyncGenerator[Drains]:
    """The drains, followed until the context ends. Raises Unavailable."""
    drains = Drains(await log.bucket(BUCKET, ttl_seconds=KEPT_SECONDS))
    await drains.follower.start()
    try:
        yield drains
    finally:
        await drains.follower.stop()


@asynccontextmanager
async def drained(
    drains: Drains, dispatcher: Dispatcher, lease: LeaseKeeper, *, seconds: float = 0.0
) -> AsyncGenerator[None]:
    """While the context lasts, this orchestrator rests as long as it is drained.

    It gives its lease back once nothing is at work, or the time is over: that lets the others go on. At its end the
    context takes nothing new and waits for what is at work, `seconds` at most.
    """

    async def look() -> None:
        while True:
            drain = drains.get(DrainTarget.ORCHESTRATOR, lease.me)
            leaving = drain is not None and (drain.over or not dispatcher.at_work)
            if leaving:
                dispatcher.let_go()
            lease.rest(leaving)
            await asyncio.sleep(_LOOK_SECONDS)

    dispatcher.drained = lambda: drains.get(DrainTarget.ORCHESTRATOR, lease.me) is not None
    async with in_background(look(), name="drain"):
        yield
        dispatcher.drained = lambda: True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while dispatcher.at_work:  # noqa: ASYNC110 - drives end one by one
                    await asyncio.sleep(_LOOK_SECONDS)
