"""CPU slots shared by all processes of a node: tenants take turns, then the executions of a tenant."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from swe_ai_fleet.domain.command import NOBODY, Owner

_POLL_SECONDS = (0.003, 0.009)
# A waiter further behind checks less often.
_MOST_POLLS_SKIPPED = 16
# The order of waiters, once read, serves all of this process for so many times as long as reading it took, but no
# longer than a first waiter's pause.
_REUSED = 4.0
# A ticket that was not renewed for this time belongs to a dead or hanging process: others overtake it.
_STALE_SECONDS = 2.0
_RENEW_SECONDS = 0.5
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
        self._token = secrets.token_hex(4)
        self._freed = asyncio.Event()
        self._order: list[_Ticket] = []
        self._order_holds_until = 0.0
        for place in (directory, self._tickets, self._turns):
            Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def count(self) -> int:
        """How many commands of one tenant run at once."""
        return len(self._shared) + 1

    @asynccontextmanager
    async def hold(self, owner: Owner = NOBODY) -> AsyncGenerator[None]:
        """Wait for a slot and hold it for the length of the context."""
        slot = None
        if owner not in self._lanes and not os.listdir(self._tickets):  # noqa: PTH208  (no Path for each entry)
            slot = self._take((f"{self._directory}/own-{owner.tenant}", *self._shared))
        path, descriptor = slot or await self._wait(owner)
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
                return await self._turn(_Ticket(owner.tenant, owner.execution_id, time.monotonic_ns(), self._token))
        finally:
            lane.waiting -= 1
            if not lane.waiting:
                del self._lanes[owner]

    async def _turn(self, ticket: _Ticket) -> tuple[str, int]:
        """Wait with a ticket: a file that all processes see, renewed while this one is healthy."""
        file = f"{self._tickets}/{ticket.name}"
        _touch(file)
        renewed = time.monotonic()
        try:
            while True:
                freed, queue = self._freed, self._queue(ticket)
                places = self._places(ticket, queue)
                if (slot := self._take(places)) is not None:
                    self._served(ticket)
                    return slot
                # What is ours to take and held by this process is freed by nobody else.
                own = queue[0] == ticket and self._held.issuperset(places)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RENEW_SECONDS if own else _pause(queue, ticket)):
                        await freed.wait()
                if time.monotonic() - renewed >= _RENEW_SECONDS:
                    _touch(file)
                    renewed = time.monotonic()
        finally:
            self._order_holds_until = 0.0
            with suppress(FileNotFoundError):
                os.unlink(file)  # noqa: PTH108

    def _places(self, ticket: _Ticket, queue: list[_Ticket]) -> tuple[str, ...]:
        """The slots that a ticket may take now, whether they are free or not."""
        first_of_tenant = next(other for other in queue if other.tenant == ticket.tenant)
        own = (f"{self._directory}/own-{ticket.tenant}",) if first_of_tenant == ticket else ()
        return (*own, *self._shared) if queue[0] == ticket else own

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

    def _queue(self, ticket: _Ticket) -> list[_Ticket]:
        """The waiters, in the order of service; the caller's own `ticket` is always among them.

        Each release wakes all waiters of a process. Were each to read the files of all, hundreds would leave no time
        for commands. What is a little late changes no more than the order: a slot is taken by its lock.
        """
        began = time.monotonic()
        if began >= self._order_holds_until or ticket not in self._order:
            self._order = self._read_queue(ticket)
            ended = time.monotonic()
            self._order_holds_until = ended + min(_REUSED * (ended - began), _POLL_SECONDS[1])
        return self._order

    def _read_queue(self, ticket: _Ticket) -> list[_Ticket]:
        """The same, as the files have it now."""
        waiting = [ticket]
        for name in os.listdir(self._tickets):  # noqa: PTH208
            if name == ticket.name:
                continue
            age = time.time() - _changed(f"{self._tickets}/{name}") / 1e9
            if age > _FORGOTTEN_SECONDS:
                Path(self._tickets, name).unlink(missing_ok=True)
            elif age < _STALE_SECONDS:
                waiting.append(_Ticket.parse(name))
        if len({other[:2] for other in waiting}) == 1:
            # Of one execution all have had the same turns.
            return sorted(waiting, key=lambda other: other.since)
        turns = {place: _changed(f"{self._turns}/{place}") for other in waiting for place in other.turns}
        return sorted(waiting, key=lambda other: (*(turns[place] for place in other.turns), other.since))

    def _served(self, ticket: _Ticket) -> None:
        """Put a tenant and its execution behind the others."""
        changed = False
        for place in ticket.turns:
            changed = _touch(f"{self._turns}/{place}") or changed
        if changed and len(places := os.listdir(self._turns)) > _TURNS_KEPT:  # noqa: PTH208
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


def _touch(path: str) -> bool:
    """Give a file the time of now, to the nanosecond: the kernel's own is some milliseconds late. True: it is new."""
    changed = False
    while True:
        now = time.time_ns()
        try:
            os.utime(path, ns=(now, now))
        except FileNotFoundError:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            changed = True
        else:
            return changed


def _changed(path: str) -> int:
    """The time of a file, in nanoseconds; 0 where there is none, or where the clock was set back since."""
    try:
        changed = os.stat(path).st_mtime_ns  # noqa: PTH116  (no Path for each look)
    except FileNotFoundError:
        return 0
    return changed if changed <= time.time_ns() else 0


def _pause(queue: list[_Ticket], ticket: _Ticket) -> float:
    return random.uniform(*_POLL_SECONDS) * min(queue.index(ticket) + 1, _MOST_POLLS_SKIPPED)  # noqa: S311  (jitter, not a secret)
