"""CPU slots shared by all processes of a node: tenants take turns, then the executions of a tenant."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from swe_ai_fleet.domain.command import NOBODY, Owner

_POLL_SECONDS = (0.003, 0.009)
# A waiter further behind checks less often.
_MOST_POLLS_SKIPPED = 4
# A ticket that was not renewed for this time belongs to a dead or hanging process: others overtake it.
_STALE_SECONDS = 2.0
_FORGOTTEN_SECONDS = 3600.0
_TURNS_KEPT = 256


class CpuSlots:
    """`count` slots for heavy commands, held by file locks in `directory`, so that a killed process frees its own.

    Each tenant has one slot to itself, the others are shared: whatever other tenants run, one command of a tenant
    begins at once. So with several tenants there are more slots. For shared slots, tenants take turns, and inside a
    tenant its executions; commands of one execution are served in order. One instance belongs to one event loop.

    Waiters leave tickets in `directory`, which all processes sort alike. Source: round robin over two levels, as in
    hierarchical fair queueing (Bennett and Zhang, SIGCOMM 1996), with commands as packets.
    """

    def __init__(self, directory: Path, count: int) -> None:
        if count < 1:
            raise ValueError("count must be at least 1")
        # Plain texts: a path object for each look costs more than the look.
        self._directory, self._tickets, self._turns = str(directory), f"{directory}/waiting", f"{directory}/turns"
        self._shared = [f"{directory}/slot-{number}" for number in range(1, count)]
        self._held: set[str] = set()
        self._crowds: dict[str, _Crowd] = {}
        self.on_crowd: Callable[[str, bool], None] | None = None
        """Called when a tenant begins, or ceases, to hold more than its own slot on this node."""
        self._lanes: dict[Owner, _Lane] = {}
        self._freed = asyncio.Event()
        for place in (directory, self._tickets, self._turns):
            Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def count(self) -> int:
        """How many commands of one tenant run at once."""
        return len(self._shared) + 1

    @asynccontextmanager
    async def hold(self, owner: Owner = NOBODY) -> AsyncGenerator[None]:
        """Wait for a slot and hold it for the length of the context."""
        taken = None
        if owner not in self._lanes and not os.listdir(self._tickets):  # noqa: PTH208  (no Path for each entry)
            taken = self._take((self._own(owner), *self._shared))
        path, descriptor = taken or await self._wait(owner)
        shared = path in self._shared
        if shared:
            self._join(owner.tenant)
        try:
            yield
        finally:
            if shared:
                self._leave(owner.tenant)
            self._held.discard(path)
            os.close(descriptor)
            freed, self._freed = self._freed, asyncio.Event()
            freed.set()

    async def _wait(self, owner: Owner) -> tuple[str, int]:
        lane = self._lanes.setdefault(owner, _Lane())
        lane.waiting += 1
        try:
            # Only the first waiter of an execution in a process reads the files.
            async with lane.turn:
                with self._ticket(owner) as ticket:
                    while True:
                        freed, queue = self._freed, self._queue()
                        if (taken := self._claim(ticket, queue)) is not None:
                            break
                        with suppress(TimeoutError):
                            async with asyncio.timeout(_pause(queue, ticket)):
                                await freed.wait()
                        self._renew(ticket)
                self._served(ticket)
                return taken
        finally:
            lane.waiting -= 1
            if not lane.waiting:
                del self._lanes[owner]

    def _claim(self, ticket: _Ticket, queue: list[_Ticket]) -> tuple[str, int] | None:
        """A slot, if it is a ticket's turn and one is free."""
        places: list[str] = []
        mine = [other for other in queue if other.tenant == ticket.tenant]
        if mine[:1] == [ticket]:
            places.append(self._own(Owner(tenant=ticket.tenant)))
        if queue[:1] == [ticket]:
            places += self._shared
        return self._take(tuple(places))

    def _take(self, places: tuple[str, ...]) -> tuple[str, int] | None:
        for path in places:
            if path in self._held:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._held.add(path)
            return path, descriptor
        return None

    def _join(self, tenant: str) -> None:
        crowd = self._crowds.get(tenant)
        if crowd is None:
            # Held by every process in which the tenant has more than its own slot.
            descriptor = os.open(f"{self._directory}/crowd-{tenant}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            crowd = self._crowds[tenant] = _Crowd(descriptor)
            if self.on_crowd is not None:
                self.on_crowd(tenant, True)
        crowd.slots += 1

    def _leave(self, tenant: str) -> None:
        crowd = self._crowds[tenant]
        crowd.slots -= 1
        if crowd.slots:
            return
        del self._crowds[tenant]
        try:
            fcntl.flock(crowd.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # there are others
        else:
            if self.on_crowd is not None:
                self.on_crowd(tenant, False)
        finally:
            os.close(crowd.descriptor)

    def _own(self, owner: Owner) -> str:
        return f"{self._directory}/own-{owner.tenant}"

    @contextmanager
    def _ticket(self, owner: Owner) -> Generator[_Ticket]:
        """A file with a waiter and its time, visible to all processes; renewed while its process is healthy."""
        ticket = _Ticket(owner.tenant, owner.execution_id, time.monotonic_ns(), secrets.token_hex(4))
        self._renew(ticket)
        try:
            yield ticket
        finally:
            Path(self._tickets, ticket.name).unlink(missing_ok=True)

    def _renew(self, ticket: _Ticket) -> None:
        Path(self._tickets, ticket.name).touch(mode=0o600)

    def _queue(self) -> list[_Ticket]:
        """The waiters, in the order of service."""
        waiting: list[_Ticket] = []
        for name in os.listdir(self._tickets):  # noqa: PTH208
            age = time.time() - _changed(f"{self._tickets}/{name}") / 1e9
            if age > _FORGOTTEN_SECONDS:
                Path(self._tickets, name).unlink(missing_ok=True)
            elif age < _STALE_SECONDS:
                waiting.append(_Ticket.parse(name))
        turns = {place: _changed(f"{self._turns}/{place}") for ticket in waiting for place in ticket.turns}
        return sorted(waiting, key=lambda ticket: (*(turns[place] for place in ticket.turns), ticket.since))

    def _served(self, ticket: _Ticket) -> None:
        """Put a tenant and its execution behind the others."""
        for place in ticket.turns:
            Path(self._turns, place).touch(mode=0o600)
            # The kernel's coarse clock is some milliseconds late.
            os.utime(f"{self._turns}/{place}", ns=(now := time.time_ns(), now))
        places = os.listdir(self._turns)  # noqa: PTH208
        if len(places) > _TURNS_KEPT:
            for place in places:
                if time.time() - _changed(f"{self._turns}/{place}") / 1e9 > _FORGOTTEN_SECONDS:
                    Path(self._turns, place).unlink(missing_ok=True)


@dataclass(slots=True)
class _Lane:
    """The waiters of one execution in this process."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


@dataclass(slots=True)
class _Crowd:
    """The slots beyond its own that a tenant holds in this process."""

    descriptor: int
    slots: int = 0


class _Ticket(NamedTuple):
    tenant: str
    execution_id: str
    since: int
    token: str

    @property
    def name(self) -> str:
        return f"{self.tenant}:{self.execution_id}:{self.since}:{self.token}"

    @classmethod
    def parse(cls, name: str) -> _Ticket:
        tenant, execution_id, since, token = name.split(":")
        return cls(tenant, execution_id, int(since), token)

    @property
    def turns(self) -> tuple[str, str]:
        """The files whose times say when the tenant, and when the execution, was served last."""
        return f"{self.tenant}:", f"{self.tenant}:{self.execution_id}:"


def _changed(path: str) -> int:
    """The time of a file, in nanoseconds; 0 where there is none, or where the clock was set back since."""
    try:
        changed = os.stat(path).st_mtime_ns  # noqa: PTH116  (no Path for each look)
    except FileNotFoundError:
        return 0
    return changed if changed <= time.time_ns() else 0


def _pause(queue: list[_Ticket], ticket: _Ticket) -> float:
    ahead = queue.index(ticket) if ticket in queue else 0
    return random.uniform(*_POLL_SECONDS) * min(ahead + 1, _MOST_POLLS_SKIPPED)  # noqa: S311  (jitter, not a secret)
