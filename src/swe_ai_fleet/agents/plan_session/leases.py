"""Who works on a session: one request at a time, in whatever process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol

from swe_ai_fleet.domain.errors import Fenced, FleetError, PreconditionFailed, Unavailable
from swe_ai_fleet.ports import KeyValue

LEASES_BUCKET = "PLAN_LEASES"
LEASE_SECONDS = 30.0
"""So long a session is held by a process that died."""
_RENEWALS = 6
_SAFE_SHARE = 0.9


class SessionLeases(Protocol):
    """Lends sessions to those who work on them."""

    def hold(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """The session for as long as the context lasts. Raises PreconditionFailed where somebody else has it.

        What is in the context is cancelled, and Unavailable raised, where the lease is lost meanwhile.
        """
        ...

    async def held(self, session_id: str) -> bool:
        """Whether somebody works on it now."""
        ...


class LeasesInMemory:
    """Leases among the requests of one process."""

    def __init__(self) -> None:
        self._held: set[str] = set()

    @asynccontextmanager
    async def hold(self, session_id: str) -> AsyncGenerator[None]:
        """The session for as long as the context lasts. Raises PreconditionFailed."""
        if session_id in self._held:
            raise being_worked_on()
        self._held.add(session_id)
        try:
            yield
        finally:
            self._held.discard(session_id)

    async def held(self, session_id: str) -> bool:
        """Whether somebody works on it now."""
        return session_id in self._held


class KeyValueLeases:
    """Leases among all processes that share a store, renewed while they are held.

    A lease is a value under the session's key, gone when it was not renewed for the time that values live there; an
    empty value is a lease that was given back. Only the store's clock counts.

    Args:
        store: The bucket `PLAN_LEASES`.
        seconds: How long its values live.
        tenant: Whose sessions they are.
    """

    def __init__(self, store: KeyValue, *, tenant: str, seconds: float = LEASE_SECONDS) -> None:
        self._store = store
        self._tenant = tenant
        self._seconds = seconds

    @asynccontextmanager
    async def hold(self, session_id: str) -> AsyncGenerator[None]:
        """The session for as long as the context lasts. Raises PreconditionFailed, Unavailable."""
        key, mine = self._key(session_id), secrets.token_hex(8).encode()
        # The store counts from a later moment, so this ends before the lease does.
        until = self._safe_until()
        entry = await self._store.get(key)
        if entry is not None and entry.value:
            raise being_worked_on()
        lease = _Lease(store=self._store, key=key, value=mine, revision=entry.revision if entry is not None else 0)
        try:
            await lease.take()
        except Fenced:
            raise being_worked_on() from None
        except BaseException:
            # It may be ours all the same.
            await lease.give_back()
            raise
        scope = asyncio.timeout_at(until)
        try:
            async with scope:
                renewing = asyncio.create_task(self._renew(lease, scope), name=f"lease of {session_id}")
                try:
                    yield
                finally:
                    renewing.cancel()
                    await asyncio.wait({renewing})
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise Unavailable("the lease of the session was lost; look at what became of it") from error
        finally:
            await lease.give_back()

    async def held(self, session_id: str) -> bool:
        """Whether somebody works on it now. Raises Unavailable."""
        entry = await self._store.get(self._key(session_id))
        return entry is not None and bool(entry.value)

    async def _renew(self, lease: _Lease, scope: asyncio.Timeout) -> None:
        while True:
            await asyncio.sleep(self._seconds / _RENEWALS)
            until = self._safe_until()
            try:
                await lease.renew()
            except Fenced:
                until = asyncio.get_running_loop().time()
            except FleetError:
                # It is tried again until the lease ends, and with it what is done under it.
                continue
            if scope.expired():
                return
            scope.reschedule(until)

    def _safe_until(self) -> float:
        return asyncio.get_running_loop().time() + _SAFE_SHARE * self._seconds

    def _key(self, session_id: str) -> str:
        return f"{self._tenant}.{session_id}"


class _Lease:
    """One value in the store, as long as nobody else changes it."""

    def __init__(self, *, store: KeyValue, key: str, value: bytes, revision: int) -> None:
        self._store = store
        self._key = key
        self._value = value
        self._revision = revision

    async def take(self) -> None:
        """Put it for the first time. Raises Fenced, Unavailable."""
        self._revision = await self._store.put(self._key, self._value, revision=self._revision)

    async def renew(self) -> None:
        """Put it once more. Raises Fenced, Unavailable."""
        try:
            self._revision = await self._store.put(self._key, self._value, revision=self._revision)
        except Fenced:
            entry = await self._store.get(self._key)
            if entry is None or entry.value != self._value:
                raise
            # The change was ours: the answer to an earlier renewal was lost.
            self._revision = await self._store.put(self._key, self._value, revision=entry.revision)

    async def give_back(self) -> None:
        """Let others have it at once. A renewal that was broken off may have been stored, so the store is asked."""
        # Where it is somebody else's by now, or the store is away, there is nothing to give back.
        with suppress(FleetError):
            entry = await self._store.get(self._key)
            if entry is not None and entry.value == self._value:
                await self._store.put(self._key, b"", revision=entry.revision)


def being_worked_on() -> PreconditionFailed:
    """What is said to the second of two who want a session."""
    return PreconditionFailed("the session is being worked on", field="session_id", hint="ask again when that is done")
