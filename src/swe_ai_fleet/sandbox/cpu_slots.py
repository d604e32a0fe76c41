"""CPU slots shared by all processes of a node: tenants take turns, then the executions of a tenant."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from swe_ai_fleet.domain.command import NOBODY, Owner

# A release wakes the next waiter. Polling finds only the slots that a killed process held.
_POLL_SECONDS = (0.03, 0.09)
# If the file system has no named pipes, polling finds every slot of another process.
_POLL_SECONDS_UNWOKEN = (0.003, 0.009)
# A ticket that was not renewed for this long belongs to a dead or hanging process and is skipped.
_STALE_SECONDS = 2.0
_RENEW_SECONDS = 0.5
_EXPIRED_SECONDS = 3600.0
_MAX_TURNS = 256
_PIPE_BYTES = 4096


class CpuSlots:
    """`count` slots for heavy commands, held by file locks in `directory`, so that a killed process frees its own.

    Each tenant has one slot to itself and the others are shared: one command of a tenant always starts at once,
    whatever other tenants run. So the node runs more than `count` commands if there are several tenants. Tenants take
    turns at the shared slots, and so do the executions of a tenant; commands of one execution are served in order. One
    instance belongs to one event loop.

    For each tenant that waits, a process leaves one ticket in `directory`, for the waiter whose turn is next. All
    processes sort the tickets alike, and a process that frees a slot wakes the process of the first ticket through a
    named pipe. Source: round robin over two levels, as in hierarchical fair queueing (Bennett and Zhang, SIGCOMM 1996),
    with commands as packets.
    """

    def __init__(self, directory: Path, count: int) -> None:
        if count < 1:
            raise ValueError("count must be at least 1")
        # Strings: to make a path object costs more than the system call it is made for.
        self._directory, self._tickets, self._turns = str(directory), f"{directory}/waiting", f"{directory}/turns"
        self._shared = [f"{directory}/slot-{number}" for number in range(1, count)]
        self._held: set[str] = set()
        self._crowds: dict[str, _Crowd] = {}
        self.on_crowd: Callable[[str, bool], None] | None = None
        """Called when a tenant begins, or ceases, to hold more than its own slot on this node."""
        self._waiting: dict[str, dict[str, _Lane]] = {}
        self._posted: dict[str, _Ticket] = {}
        self._token = secrets.token_hex(4)
        self._woken = asyncio.Event()
        self._dispatcher: asyncio.Task[None] | None = None
        self._wakeable = True
        for path in (directory, self._tickets, self._turns):
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def count(self) -> int:
        """The number of commands that one tenant can run at once."""
        return len(self._shared) + 1

    @asynccontextmanager
    async def hold(self, owner: Owner = NOBODY) -> AsyncGenerator[None]:
        """Wait for a slot and hold it for the length of the context."""
        slot = None
        if not self._waiting and not os.listdir(self._tickets):  # noqa: PTH208  (see CpuSlots.__init__)
            slot = self._take((f"{self._directory}/own-{owner.tenant}", *self._shared))
        slot = slot or await self._wait(owner)
        shared = slot.path in self._shared
        if shared:
            self._join(owner.tenant)
        try:
            yield
        finally:
            if shared:
                self._leave(owner.tenant)
            self._release(slot)

    async def _wait(self, owner: Owner) -> _Slot:
        lanes = self._waiting.setdefault(owner.tenant, {})
        lane = lanes.setdefault(owner.execution_id, _Lane())
        waiter = _Waiter(time.monotonic_ns(), asyncio.get_running_loop().create_future())
        lane.waiters.append(waiter)
        if self._dispatcher is None:
            self._dispatcher = asyncio.create_task(self._dispatch())
        self._woken.set()
        try:
            return await waiter.slot
        except asyncio.CancelledError:
            if waiter.slot.cancelled():
                self._woken.set()
            elif waiter.slot.exception() is None:
                self._release(waiter.slot.result())
            raise

    def _has_waiters(self) -> bool:
        """Remove waiters that were served or have given up from the front of each lane; whether any are left."""
        for tenant, lanes in list(self._waiting.items()):
            for execution, lane in list(lanes.items()):
                while lane.waiters and lane.waiters[0].slot.done():
                    lane.waiters.popleft()
                if not lane.waiters:
                    del lanes[execution]
            if not lanes:
                del self._waiting[tenant]
        return bool(self._waiting)

    async def _dispatch(self) -> None:
        """Give slots to the waiters of this process until none is left."""
        try:
            with self._wake_up_calls():
                renewed = time.monotonic()
                while self._has_waiters():
                    self._woken.clear()
                    self._post()
                    if self._serve(self._queue()):
                        continue
                    pause = _POLL_SECONDS if self._wakeable else _POLL_SECONDS_UNWOKEN
                    with suppress(TimeoutError):
                        async with asyncio.timeout(random.uniform(*pause)):  # noqa: S311  (jitter, not a secret)
                            await self._woken.wait()
                    if time.monotonic() - renewed >= _RENEW_SECONDS:
                        for ticket in self._posted.values():
                            _touch(f"{self._tickets}/{ticket.name}")
                        renewed = time.monotonic()
        except (OSError, ValueError) as fault:
            for lanes in self._waiting.values():
                for waiter in (waiter for lane in lanes.values() for waiter in lane.waiters):
                    if not waiter.slot.done():
                        waiter.slot.set_exception(fault)
            self._waiting.clear()
        finally:
            self._dispatcher = None
            for ticket in self._posted.values():
                _remove(f"{self._tickets}/{ticket.name}")
            self._posted.clear()

    @contextmanager
    def _wake_up_calls(self) -> Generator[None]:
        """The named pipe through which other processes wake this one."""
        path, loop = self._pipe(self._token), asyncio.get_running_loop()
        try:
            os.mkfifo(path, 0o600)
        except OSError:
            self._wakeable = False
            yield
            return
        try:
            # Open for writing too: otherwise reads return end of file whenever no other process has it open.
            pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            loop.add_reader(pipe, self._on_wake, pipe)
            try:
                yield
            finally:
                loop.remove_reader(pipe)
                os.close(pipe)
        finally:
            _remove(path)

    def _pipe(self, token: str) -> str:
        return f"{self._directory}/wake-{token}"

    def _on_wake(self, pipe: int) -> None:
        with suppress(BlockingIOError):
            os.read(pipe, _PIPE_BYTES)
        self._woken.set()

    def _post(self) -> None:
        """Leave one ticket for each waiting tenant of this process, for the waiter whose turn is next."""
        for tenant in self._posted.keys() - self._waiting.keys():
            _remove(f"{self._tickets}/{self._posted.pop(tenant).name}")
        for tenant, lanes in self._waiting.items():
            ticket, posted = self._next(tenant, lanes), self._posted.get(tenant)
            if ticket == posted:
                continue
            if posted is not None:
                _remove(f"{self._tickets}/{posted.name}")
            _touch(f"{self._tickets}/{ticket.name}")
            self._posted[tenant] = ticket

    def _next(self, tenant: str, lanes: dict[str, _Lane]) -> _Ticket:
        while True:
            execution, lane = min(lanes.items(), key=lambda item: (item[1].turn, item[1].waiters[0].since))
            ticket = _Ticket(tenant, execution, lane.waiters[0].since, self._token)
            # Another process may have served this execution since, so the turn of the first one is read again.
            if (turn := _changed(f"{self._turns}/{ticket.turns[1]}")) == lane.turn:
                return ticket
            lane.turn = turn

    def _serve(self, queue: list[_Ticket]) -> bool:
        """Give one free slot to a waiter of this process; False if none could be given."""
        for ticket in queue:
            if ticket.token != self._token or (slot := self._take(self._allowed(ticket, queue))) is None:
                continue
            _remove(f"{self._tickets}/{self._posted.pop(ticket.tenant).name}")
            self._end_turn(ticket)
            self._waiting[ticket.tenant][ticket.execution_id].waiters[0].slot.set_result(slot)
            # Another slot may be free, and the next ticket may belong to another process.
            self._wake([other for other in queue if other != ticket])
            return True
        return False

    def _allowed(self, ticket: _Ticket, queue: list[_Ticket]) -> tuple[str, ...]:
        """The slots that a ticket may take now, free or not."""
        first_of_tenant = next(other for other in queue if other.tenant == ticket.tenant)
        own = (f"{self._directory}/own-{ticket.tenant}",) if first_of_tenant == ticket else ()
        return (*own, *self._shared) if queue[0] == ticket else own

    def _release(self, slot: _Slot) -> None:
        self._held.discard(slot.path)
        os.close(slot.descriptor)
        own = slot.path.removeprefix(f"{self._directory}/own-") if slot.path not in self._shared else None
        with suppress(FileNotFoundError):  # The directory may be removed when the fleet ends.
            self._wake([ticket for ticket in self._queue() if own is None or ticket.tenant == own])

    def _wake(self, queue: list[_Ticket]) -> None:
        """Wake the process of the first ticket whose process is alive."""
        for ticket in queue:
            if ticket.token == self._token:
                self._woken.set()
                return
            try:
                pipe = os.open(self._pipe(ticket.token), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as fault:
                # Without a reader (ENXIO) its process is dead; without a pipe its process polls.
                if fault.errno == errno.ENXIO:
                    _remove(f"{self._tickets}/{ticket.name}")
                    _remove(self._pipe(ticket.token))
                continue
            try:
                with suppress(BlockingIOError, BrokenPipeError):
                    os.write(pipe, b"\0")
            finally:
                os.close(pipe)
            return

    def _take(self, paths: tuple[str, ...]) -> _Slot | None:
        for path in paths:
            if path in self._held:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._held.add(path)
            return _Slot(path, descriptor)
        return None

    def _join(self, tenant: str) -> None:
        crowd = self._crowds.get(tenant)
        if crowd is None:
            # Every process in which the tenant has more than its own slot holds this lock.
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
            return  # another process still has slots of this tenant
        else:
            if self.on_crowd is not None:
                self.on_crowd(tenant, False)
        finally:
            os.close(crowd.descriptor)

    def _queue(self) -> list[_Ticket]:
        """The tickets of all processes, in the order of service."""
        waiting = list(self._posted.values())
        ours = {ticket.name for ticket in waiting}
        for name in os.listdir(self._tickets):  # noqa: PTH208
            if name in ours:
                continue
            age = time.time() - _changed(f"{self._tickets}/{name}") / 1e9
            if age > _EXPIRED_SECONDS:
                _remove(f"{self._tickets}/{name}")
            elif age < _STALE_SECONDS:
                waiting.append(_Ticket.parse(name))
        turns = {name: _changed(f"{self._turns}/{name}") for ticket in waiting for name in ticket.turns}
        return sorted(waiting, key=lambda ticket: (*(turns[name] for name in ticket.turns), ticket.since))

    def _end_turn(self, ticket: _Ticket) -> None:
        """Put a served tenant and its execution after the others."""
        is_new = False
        for name in ticket.turns:
            is_new = _touch(f"{self._turns}/{name}") or is_new
        if is_new and len(names := os.listdir(self._turns)) > _MAX_TURNS:  # noqa: PTH208
            for name in names:
                if time.time() - _changed(f"{self._turns}/{name}") / 1e9 > _EXPIRED_SECONDS:
                    Path(self._turns, name).unlink(missing_ok=True)


class _Slot(NamedTuple):
    """A file that this process has locked."""

    path: str
    descriptor: int


class _Waiter(NamedTuple):
    since: int
    slot: asyncio.Future[_Slot]


@dataclass(slots=True)
class _Lane:
    """The waiters of one execution in this process; `turn` is when it was last served, as last read."""

    waiters: deque[_Waiter] = field(default_factory=lambda: deque[_Waiter]())
    turn: int = 0


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
        """The files whose modification times say when the tenant, and when the execution, was last served."""
        return f"{self.tenant}:", f"{self.tenant}:{self.execution_id}:"


def _touch(path: str) -> bool:
    """Set a file's time to now, to the nanosecond (the kernel's is some milliseconds late); True: the file is new."""
    is_new = False
    while True:
        now = time.time_ns()
        try:
            os.utime(path, ns=(now, now))
        except FileNotFoundError:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            is_new = True
        else:
            return is_new


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108  (see CpuSlots.__init__)


def _changed(path: str) -> int:
    """The modification time of a file in nanoseconds; 0 if it does not exist or the clock was set back since."""
    try:
        changed = os.stat(path).st_mtime_ns  # noqa: PTH116  (see CpuSlots.__init__)
    except FileNotFoundError:
        return 0
    return changed if changed <= time.time_ns() else 0
