"""Replicas of the orchestrator: the lease of each, renewed from its own thread, and operators' drains.

A drain takes an orchestrator, an agent host or a machine of the Ray cluster out of service. It is stored in NATS, for
all orchestrators and across their restarts. Drained orchestrators take no execution, drained hosts and machines no
agent. Their running work ends there, or is moved when the drain's time is over.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

import structlog

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.following import Follower, in_background
from swe_ai_fleet.orchestrator.dispatcher import Dispatcher
from swe_ai_fleet.ports import KeyValue, KeyValueChange
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.settings import Settings

LEASES_BUCKET = "orchestrators"
_PREFIX = "replicas."
_RENEWALS = 10
"""Renewals during a lease's lifetime, so that a short outage of the server costs no lease."""
_log = structlog.get_logger(__name__)
DRAINS_BUCKET = "drains"
DRAINS_KEPT_SECONDS = 30 * 86_400.0
"""Names of orchestrators and Ray nodes are used once, so old drains are dropped."""
_LOOK_SECONDS = 0.5
"""How often a drained orchestrator checks whether its work or the drain's time is over."""


class LeaseKeeper:
    """A `Replicas` that keeps one lease alive. Made by `open_leases`.

    It runs in a thread with its own event loop and connection, so that nothing the orchestrator does can delay a
    renewal. Another replica counts as gone when its lease has been missing for a third of a lease's lifetime: after an
    outage of NATS all leases may be missing for a moment.

    Args:
        anew: Whether old leases are deleted, since this process has just started the server and must be alone.
    """

    def __init__(self, settings: Settings, me: str, *, anew: bool) -> None:
        self._settings = settings
        self.me = me
        self._anew = anew
        self._last_seen: dict[str, float] = {}
        self._revision = 0
        self._checked_at = float("-inf")
        self._opened = threading.Event()
        self._fault: FleetError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._resting = False
        self.failures = 0
        self.ended = 0
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def alive(self) -> frozenset[str]:
        if time.monotonic() - self._checked_at > self._settings.lease_seconds:
            return frozenset()
        return frozenset(self._last_seen)

    @property
    def fresh(self) -> bool:
        """Whether the last renewal is recent, which shows that NATS stores messages."""
        return time.monotonic() - self._checked_at < 1.5 * self._settings.lease_seconds / _RENEWALS

    def rest(self, resting: bool) -> None:
        """While `resting`, return the lease at the next renewal; take it again afterwards."""
        self._resting = resting

    async def open(self) -> None:
        """Start the thread; the lease is held when this returns. Raises FleetError where it cannot be taken."""
        self._thread.start()
        await asyncio.to_thread(self._opened.wait)
        if self._fault is not None:
            raise self._fault

    async def close(self) -> None:
        """Return the lease, so that others need not wait until it expires."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except FleetError as fault:
            self._fault = fault
        finally:
            self._opened.set()

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        seconds = self._settings.lease_seconds
        async with connect_log(self._settings, name=f"leases of {self.me}", timeout=seconds / 3) as log:
            store = await log.bucket(LEASES_BUCKET, ttl_seconds=seconds)
            if self._anew:
                for entry in await store.entries(_PREFIX):
                    await store.delete(entry.key)
            await self._renew(store)
            self._opened.set()
            while not self._stop.is_set():
                try:
                    async with asyncio.timeout(seconds / _RENEWALS):
                        await self._stop.wait()
                except TimeoutError:
                    try:
                        await self._renew(store)
                    except FleetError as error:
                        self.failures += 1
                        _log.warning("the lease could not be renewed", reason=str(error))
            try:
                async with asyncio.timeout(seconds / _RENEWALS):
                    await store.delete(_PREFIX + self.me)
            except (FleetError, TimeoutError) as error:
                _log.info("the lease expired", reason=str(error))

    async def _renew(self, store: KeyValue) -> None:
        if self._resting:
            if self._revision:
                await store.delete(_PREFIX + self.me)
            revision = 0
        else:
            revision = await store.put(_PREFIX + self.me, str(os.getpid()).encode())
        now = time.monotonic()
        # The bucket has only leases: if no revision is between, no other lease was taken or returned.
        still_alone = self._last_seen.keys() == {self.me} and revision == self._revision + 1 > 1
        self._revision = revision
        if still_alone:
            self._last_seen = {self.me: now}
            self._checked_at = now
            return
        leased = {entry.key.removeprefix(_PREFIX) for entry in await store.entries(_PREFIX)}
        grace = self._settings.lease_seconds / 3
        recent = {name: at for name, at in self._last_seen.items() if now - at < grace}
        self.ended += len(self._last_seen.keys() - recent.keys() - leased)
        self._last_seen = {**recent, **dict.fromkeys(leased, now)}
        self._checked_at = now


@asynccontextmanager
async def open_leases(settings: Settings, *, anew: bool) -> AsyncGenerator[LeaseKeeper]:
    """This process's lease as a replica, until the context ends. Raises FleetError where it cannot be taken."""
    keeper = LeaseKeeper(settings, replica_name(), anew=anew)
    await keeper.open()
    try:
        yield keeper
    finally:
        await keeper.close()


def replica_name() -> str:
    """A name that no other process has or had: host, process id and a few random digits."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


class DrainTarget(StrEnum):
    ORCHESTRATOR = "orchestrator"
    HOST = "host"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A drain since `at` (seconds since 1970), `by` whom; work running `within` seconds later is moved (0: never)."""

    at: float
    by: str = ""
    within: float = 0.0

    @property
    def over(self) -> bool:
        """Whether the time of the drain is over."""
        return bool(self.within) and time.time() > self.at + self.within


class Drains:
    """The current drains, followed in NATS. Made by `open_drains`."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self._drains: dict[str, Drain] = {}
        self._changed = asyncio.Event()
        self.follower = Follower[KeyValueChange](
            "the list of drains",
            lambda start: store.changes(from_revision=start, follow=True),
            self._take,
            hint="restart the orchestrator",
        )

    def get(self, target: DrainTarget, name: str) -> Drain | None:
        """The drain of a target; None without one. Hosts are named `REPLICA.HOST`, nodes by their id."""
        return self._drains.get(f"{target}.{name}")

    @property
    def empty(self) -> bool:
        """Whether nothing is drained."""
        return not self._drains

    async def changed(self, seconds: float | None) -> None:
        """Wait until the list changes, at most so many seconds (None: for ever)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def names(self, target: DrainTarget) -> set[str]:
        """The names of all drained targets of a kind."""
        return {key.partition(".")[2] for key in self._drains if key.startswith(f"{target}.")}

    async def begin(self, target: DrainTarget, name: str, *, by: str = "", within: float = 0.0) -> None:
        """Drain a target; an existing drain stays as it is. Raises Unavailable."""
        with suppress(Fenced):
            await self._store.put(f"{target}.{name}", to_json(Drain(at=time.time(), by=by, within=within)), revision=0)
            _log.info("drains.begun", target=target, name=name, by=by, within=within)

    async def undo(self, target: DrainTarget, name: str) -> None:
        """End a drain. Raises Unavailable."""
        await self._store.delete(f"{target}.{name}")
        _log.info("drains.undone", target=target, name=name)

    def _take(self, change: KeyValueChange) -> int:
        self._drains.pop(change.key, None)
        if change.value is not None:
            try:
                self._drains[change.key] = from_json(Drain, change.value)
            except ValueError:
                _log.warning("drains.unreadable", key=change.key)
        # Wakes current waiters only; later callers read the list.
        self._changed.set()
        self._changed.clear()
        return change.revision


@asynccontextmanager
async def open_drains(log: JetStream) -> AsyncGenerator[Drains]:
    """The drains, followed until the context ends. Raises Unavailable."""
    drains = Drains(await log.bucket(DRAINS_BUCKET, ttl_seconds=DRAINS_KEPT_SECONDS))
    await drains.follower.start()
    try:
        yield drains
    finally:
        await drains.follower.stop()


@asynccontextmanager
async def drained(
    drains: Drains, dispatcher: Dispatcher, lease: LeaseKeeper, *, seconds: float = 0.0
) -> AsyncGenerator[None]:
    """Until the context ends, this orchestrator returns its lease while it is drained and idle.

    A drain whose time is over returns the lease in spite of running work, which the others then take over. At its end
    the context takes no new work and waits for running work, `seconds` at most.
    """

    async def look() -> None:
        while True:
            drain = drains.get(DrainTarget.ORCHESTRATOR, lease.me)
            leaving = drain is not None and (drain.over or not dispatcher.at_work)
            if leaving:
                dispatcher.let_go()
            lease.rest(leaving)
            await drains.changed(None if drain is None else _LOOK_SECONDS)

    dispatcher.drained = lambda: drains.get(DrainTarget.ORCHESTRATOR, lease.me) is not None
    async with in_background(look(), name="drain"):
        yield
        dispatcher.drained = lambda: True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while dispatcher.at_work:  # noqa: ASYNC110 - drives end one by one
                    await asyncio.sleep(_LOOK_SECONDS)
