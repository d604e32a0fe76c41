"""Quotas of tenants: agents at work, executions that wait, tokens of a day, bytes stored; and who says so.

The limiter of concurrent agents wraps the fleet; what each tenant has stored is read from the streams.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar, cast

from swe_ai_fleet.domain.access import StoredPiece, TenantRules
from swe_ai_fleet.domain.assignment import Assignment, AssignmentKind, CodingAssignment
from swe_ai_fleet.domain.errors import ResourceExhausted, Unavailable
from swe_ai_fleet.domain.fleet_status import StorageStatus
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.following import Follower
from swe_ai_fleet.ports import Fleet
from swe_ai_fleet.snapshots import Snapshots

Rules = Callable[[str], TenantRules]
"""What holds for a tenant now."""
Spent = Callable[[str], Awaitable[int]]
"""The prompt and completion tokens of a tenant since midnight UTC. Raises Unavailable while nobody knows."""


Stored = Callable[[str], Awaitable[int]]
"""The bytes that are kept for a tenant. Raises Unavailable while nobody knows."""
Kept = Callable[[], Awaitable[Sequence[StorageStatus]]]
"""How full the streams of the log and their account are, a few seconds ago at most. Raises Unavailable."""
T = TypeVar("T")


def no_rules(tenant: str) -> TenantRules:
    """What holds for everybody where nobody said anything: nothing."""
    return TenantRules(tenant=tenant)


async def nothing_spent(_: str) -> int:
    """What everybody spent, or stored, where nobody counts."""
    return 0


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Asks whether a tenant may have more.

    Attributes:
        kept: How full the log is that all share; None: nobody looks.
    """

    rules: Rules = no_rules
    spent: Spent = nothing_spent
    stored: Stored = nothing_spent
    kept: Kept | None = None
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    def check_queued(self, tenant: str, queued: int) -> None:
        """Whether one more execution of a tenant may wait where so many do. Raises ResourceExhausted."""
        most = self.rules(tenant).quota.queued
        if most and queued >= most:
            raise ResourceExhausted(
                f"{queued} executions of the tenant are waiting",
                field="quota.queued",
                hint=f"at most {most} are allowed; submit more when some of them have started",
            )

    async def check_log(self) -> None:
        """Whether the log has room for something new. Raises ResourceExhausted, Unavailable."""
        for storage in await self.kept() if self.kept is not None else ():
            if storage.nearly_full:
                raise ResourceExhausted(
                    f"the log of events is nearly full: {storage.bytes:,} of {storage.max_bytes:,} bytes "
                    f"({storage.name}); what runs goes on",
                    field="nats",
                    hint="the operator raises the limit or shortens FLEET_EVENT_DAYS; see `fleet doctor`",
                )

    async def tokens_left(self, tenant: str) -> int | None:
        """The tokens that a tenant may still spend today, 0 at least; None: as many as it wants. Raises Unavailable."""
        most = self.rules(tenant).quota.tokens_per_day
        return max(0, most - await self.spent(tenant)) if most else None

    async def check_tokens(self, tenant: str) -> int | None:
        """`tokens_left`, where there are any. Raises ResourceExhausted, Unavailable."""
        tokens = await self.tokens_left(tenant)
        if tokens == 0:
            midnight = self.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
            raise ResourceExhausted(
                f"the tenant has spent its {self.rules(tenant).quota.tokens_per_day} tokens for today",
                field="quota.tokens_per_day",
                hint=f"the quota resets at {midnight.isoformat(timespec='minutes')}",
            )
        return tokens

    async def storage_left(self, tenant: str) -> int | None:
        """The bytes that may still be stored for a tenant, 0 at least; None: as many as there is room for.

        Raises Unavailable.
        """
        most = self.rules(tenant).quota.storage_bytes
        return max(0, most - await self.stored(tenant)) if most else None

    async def check_storage(self, tenant: str, wanted: int = 1) -> int | None:
        """`storage_left`, where that is as much as wanted. Raises ResourceExhausted, Unavailable."""
        free = await self.storage_left(tenant)
        if free is not None and free < wanted:
            most = self.rules(tenant).quota.storage_bytes
            raise ResourceExhausted(
                f"{most - free:,} of the {most:,} bytes of the tenant's storage quota are in use",
                field="quota.storage_bytes",
                hint="data older than FLEET_EVENT_DAYS is deleted; the operator can raise the quota",
            )
        return free


LOOK_SECONDS = 1.0
"""After so long whoever waits looks whether the quota, or those who share it, are others."""

_UNLIMITED_KINDS = (AssignmentKind.BASELINE, AssignmentKind.CHECK, AssignmentKind.EXAMINE, AssignmentKind.OPERATE)


@dataclass
class ConcurrencyLimiter:
    """A `Fleet` in which each run waits for a slot of its tenant and gets no more tokens than the tenant has left.

    Inside one replica a tenant's quota of agents is kept exactly. Replicas that drive something of the same tenant
    share it evenly, each one slot at least, by what each knows of the others: for as long as the log takes to tell of a
    claim (some milliseconds) one more replica may count on slots that it has to give up.
    """

    fleet: Fleet
    quotas: Quotas
    me: str = ""
    sharers: Callable[[str], Collection[str]] = lambda _: ()
    taken: Counter[str] = field(default_factory=Counter[str])
    _lines: dict[str, deque[object]] = field(default_factory=dict[str, deque[object]])
    _left: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, assignment: Assignment[T]) -> T:
        """See `Fleet.run`; checks and single calls of tools take no agent slot.

        Raises ResourceExhausted where the tenant has no tokens left.
        """
        if assignment.kind in _UNLIMITED_KINDS:
            return await self.fleet.run(assignment)
        async with self._slot(assignment) as granted:
            return await self.fleet.run(granted)

    @asynccontextmanager
    async def _slot(self, assignment: Assignment[T]) -> AsyncGenerator[Assignment[T]]:
        """Holds a slot of the tenant; gives the assignment with what it may spend."""
        tenant = assignment.task.tenant
        await self._wait(tenant)
        self.taken[tenant] += 1
        try:
            yield await self._granted(assignment)
        finally:
            self.taken[tenant] -= 1
            self._changed()

    async def _wait(self, tenant: str) -> None:
        """Waits in the tenant's order until a slot is free."""
        line = self._lines.setdefault(tenant, deque())
        ticket = object()
        line.append(ticket)
        try:
            while line[0] is not ticket or self.taken[tenant] >= self._slots(tenant):
                released = self._left
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await released.wait()
        finally:
            line.remove(ticket)
            if not line:
                self._lines.pop(tenant, None)
            self._changed()

    def _slots(self, tenant: str) -> float:
        """How many agents of a tenant may work through this replica now."""
        most = self.quotas.rules(tenant).quota.agents
        if not most:
            return float("inf")
        sharers = sorted({*self.sharers(tenant), self.me})
        # A replica without a slot could wait for ever for its part of an execution that another replica drives.
        return max(1, most // len(sharers) + (sharers.index(self.me) < most % len(sharers)))

    async def _granted(self, assignment: Assignment[T]) -> Assignment[T]:
        room = await self.quotas.storage_left(assignment.task.tenant)
        assignment = _bounded(assignment, room, self._parts(assignment))
        tokens = await self.quotas.check_tokens(assignment.task.tenant)
        if tokens is None:
            return assignment
        task = assignment.task
        if _resumes(assignment):
            # What a run spent before counts towards its own limit, so only the whole day's bounds it here.
            return replace(assignment, task=_limited(task, self.quotas.rules(task.tenant).quota.tokens_per_day))
        return replace(assignment, task=_limited(task, max(1, tokens // self._parts(assignment))))

    def _parts(self, assignment: Assignment[T]) -> int:
        """Those that work at the same time share what is left."""
        return max(self.taken[assignment.task.tenant], assignment.task.num_agents, 1)

    def _changed(self) -> None:
        released, self._left = self._left, asyncio.Event()
        released.set()


def _resumes(assignment: Assignment[object]) -> bool:
    return isinstance(assignment, CodingAssignment) and assignment.resume


def _bounded(assignment: Assignment[T], room: int | None, parts: int) -> Assignment[T]:
    """The assignment with no larger checkpoints than there is room for: of a run there are two for a moment."""
    if room is None or not isinstance(assignment, CodingAssignment):
        return assignment
    return cast("Assignment[T]", replace(assignment, checkpoint_bytes=room // (2 * parts)))


def _limited(task: Task, tokens: int) -> Task:
    """The task with no more tokens for one run."""
    limits = task.constraints.limits
    most = min(limits.max_tokens or tokens, tokens)
    return replace(task, constraints=replace(task.constraints, limits=replace(limits, max_tokens=most)))


Pieces = Callable[[int], AsyncGenerator[StoredPiece | None, None]]
"""What a stream holds from a position on, without an end; None once everything older is told."""

_DAY = 86_400
_TIMEOUT_SECONDS = 5.0
_HINT = "restart the orchestrator"


class StorageUsage:
    """Sums by tenant what streams hold. An async context: inside, they are read in the background, then followed.

    Memory grows with tenants, days and places in use, not with what is stored.

    Args:
        kept_seconds: How old pieces become before the streams forget them; 0: they do not.
        clock: Seconds since 1970.
        snapshots: Where the sums are saved; None: streams are read from their starts.
    """

    def __init__(
        self,
        streams: Mapping[str, Pieces],
        *,
        kept_seconds: float = 0.0,
        clock: Callable[[], float] = time.time,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._kept_days = int(kept_seconds // _DAY) if kept_seconds else 0
        self._clock = clock
        self._held = [_Held(name, pieces, snapshots) for name, pieces in streams.items()]

    async def __aenter__(self) -> StorageUsage:
        for store in self._held:
            store.follower.begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(store.follower.stop() for store in self._held))

    async def bytes_of(self, tenant: str) -> int:
        """What a tenant has stored. Raises Unavailable while that is not known."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await asyncio.gather(*(held.follower.wait_caught_up() for held in self._held))
        except TimeoutError:
            raise Unavailable("the tenant's storage is still being counted", hint="try again soon") from None
        for held in self._held:
            held.follower.check()
        return self._sum(tenant)

    def by_tenant(self) -> Mapping[str, int]:
        """What is known to be stored, of every tenant."""
        return {
            tenant: self._sum(tenant) for tenant in sorted({name for store in self._held for name in store.tenants})
        }

    def _sum(self, tenant: str) -> int:
        oldest = int(self._clock() // _DAY) - self._kept_days if self._kept_days else 0
        return sum(store.bytes_of(tenant, oldest) for store in self._held)


class _Held:
    """What one stream holds of each tenant: by day, and in places whose content is replaced."""

    def __init__(self, name: str, pieces: Pieces, snapshots: Snapshots | None) -> None:
        self.tenants: defaultdict[str, tuple[Counter[int], dict[str, int]]] = defaultdict(lambda: (Counter(), {}))
        saved = (
            None
            if snapshots is None
            else snapshots.of(f"held-{name}", sys.modules[__name__], dump=self._dump, load=self._load)
        )
        self.follower = Follower(name, pieces, self._take, hint=_HINT, snapshot=saved)

    def bytes_of(self, tenant: str, oldest: int) -> int:
        """The bytes of a tenant, of days before the oldest aside."""
        days, places = self.tenants.get(tenant, (Counter[int](), dict[str, int]()))
        return sum(size for day, size in days.items() if day >= oldest) + sum(places.values())

    def _take(self, piece: StoredPiece) -> int:
        days, places = self.tenants[piece.tenant]
        if not piece.place:
            days[int(piece.at // _DAY)] += piece.bytes
        elif piece.bytes:
            places[piece.place] = piece.bytes
        else:
            places.pop(piece.place, None)
        return piece.sequence

    def _dump(self) -> Iterator[bytes]:
        rows = [[name, list(days.items()), places] for name, (days, places) in self.tenants.items()]
        return iter([json.dumps(holding).encode() for holding in rows])

    def _load(self, lines: Iterator[bytes]) -> None:
        self.tenants.clear()
        for name, days, places in map(json.loads, lines):
            self.tenants[name] = (Counter(dict(days)), places)
