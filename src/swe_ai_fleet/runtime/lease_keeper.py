"""This replica's lease, renewed from a thread of its own, and the leases of the others."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import structlog

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.settings import Settings

BUCKET = "orchestrators"
_PREFIX = "replicas."
_RENEWALS = 10
"""Renewals in the time that a lease lives: a server that is away for a moment costs none."""

_log = structlog.get_logger()


class LeaseKeeper:
    """A `Replicas` that keeps one lease alive. Made by `open_leases`.

    It runs in a thread with an event loop and a connection of its own, so that nothing that the orchestrator does can
    hold a renewal up. Another replica counts as gone when its lease has been missing for a third of a lease's life:
    after an outage of NATS all leases may be missing for a moment.

    Args:
        settings: Where NATS is, and how long a lease lives.
        me: This replica's name.
        anew: Whether nobody else can be alive: this process has just started the server itself.

    Attributes:
        failures: Renewals that failed.
        ended: Leases of others that ended.
    """

    def __init__(self, settings: Settings, me: str, *, anew: bool) -> None:
        self._settings = settings
        self._me = me
        self._anew = anew
        self._seen: dict[str, float] = {}
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

    @property
    def me(self) -> str:
        """This replica's name."""
        return self._me

    def alive(self) -> frozenset[str]:
        """Those that hold a lease, or held one a moment ago; nobody while NATS cannot be asked."""
        if time.monotonic() - self._checked_at > self._settings.lease_seconds:
            return frozenset()
        return frozenset(self._seen)

    @property
    def fresh(self) -> bool:
        """Whether the last renewal is no longer ago than it should be: NATS stores what it is sent."""
        return time.monotonic() - self._checked_at < 1.5 * self._settings.lease_seconds / _RENEWALS

    def rest(self, resting: bool) -> None:
        """Give the lease back with the next renewal while `resting`; take it again afterwards."""
        self._resting = resting

    async def open(self) -> None:
        """Start the thread; the lease stands when this returns. Raises FleetError where it cannot be had."""
        self._thread.start()
        await asyncio.to_thread(self._opened.wait)
        if self._fault is not None:
            raise self._fault

    async def close(self) -> None:
        """Give the lease back, so that others need not wait for its end."""
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
        async with connect_log(self._settings, name=f"leases of {self._me}", timeout=seconds / 3) as log:
            store = await log.bucket(BUCKET, ttl_seconds=seconds)
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
                    await store.delete(_PREFIX + self._me)
            except (FleetError, TimeoutError) as error:
                _log.info("the lease expired", reason=str(error))

    async def _renew(self, store: KeyValue) -> None:
        if self._resting:
            if self._revision:
                await store.delete(_PREFIX + self._me)
            revision = 0
        else:
            revision = await store.put(_PREFIX + self._me, str(os.getpid()).encode())
        now = time.monotonic()
        # Everything in the bucket is a lease: without a revision in between nobody else has taken or given back one.
        still_alone = self._seen.keys() == {self._me} and revision == self._revision + 1 > 1
        self._revision = revision
        if still_alone:
            self._seen = {self._me: now}
            self._checked_at = now
            return
        leased = {entry.key.removeprefix(_PREFIX) for entry in await store.entries(_PREFIX)}
        grace = self._settings.lease_seconds / 3
        kept = {name: at for name, at in self._seen.items() if now - at < grace}
        self.ended += len(self._seen.keys() - kept.keys() - leased)
        self._seen = {**kept, **dict.fromkeys(leased, now)}
        self._checked_at = now


@asynccontextmanager
async def open_leases(settings: Settings, *, anew: bool) -> AsyncGenerator[LeaseKeeper]:
    """This process as a replica with a lease, until the context ends. Raises FleetError where it cannot be had."""
    keeper = LeaseKeeper(settings, replica_name(), anew=anew)
    await keeper.open()
    try:
        yield keeper
    finally:
        await keeper.close()


def replica_name() -> str:
    """A name that no other process has, and none has had before: host, process and a few random digits."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
