"""Quotas of tenants: running agents, waiting executions, tokens a day, bytes stored.

The limiter of concurrent agents wraps the fleet; the bytes of each tenant are summed from the streams.
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
"""The current rules of a tenant."""
Spent = Callable[[str], Awaitable[int]]
"""The prompt and completion tokens of a tenant since midnight UTC. Raises Unavailable while they are being counted."""


Stored = Callable[[str], Awaitable[int]]
"""The bytes that are stored for a tenant. Raises Unavailable while they are being counted."""
Kept = Callable[[], Awaitable[Sequence[StorageStatus]]]
"""How full the streams of the log and their account are, as of a few seconds ago. Raises Unavailable."""
T = TypeVar("T")


def no_rules(tenant: str) -> TenantRules:
    """The rules of a tenant without any: no limits."""
    return TenantRules(tenant=tenant)


async def nothing_spent(_: str) -> int:
    """The usage of a tenant where none is counted."""
    return 0


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Checks requests against the quotas of their tenants.

    Attributes:
        kept: How full the shared log is; None: not checked.
    """

    rules: Rules = no_rules
    spent: Spent = nothing_spent
    stored: Stored = nothing_spent
    kept: Kept | None = None
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    def check_queued(self, tenant: str, queued: int) -> None:
        """Check that one more execution of a tenant may wait beside `queued` others. Raises ResourceExhausted."""
        most = self.rules(tenant).quota.queued
        if most and queued >= most:
            raise ResourceExhausted(
                f"{queued} executions of the tenant are waiting",
                field="quota.queued",
                hint=f"at most {most} are allowed; submit more when some of them have started",
            )

    async def check_log(self) -> None:
        """Check that the log has room for a new task. Raises ResourceExhausted, Unavailable."""
        for storage in await self.kept() if self.kept is not None else ():
            if storage.nearly_full:
                raise ResourceExhausted(
                    f"the log of events is nearly full: {storage.bytes:,} of {storage.max_bytes:,} bytes "
                    f"({storage.name}); running executions continue",
                    field="nats",
                    hint="the operator raises the limit or shortens FLEET_EVENT_DAYS; see `fleet doctor`",
                )

    async def tokens_left(self, tenant: str) -> int | None:
        """The tokens that a tenant may still spend today, 0 at least; None: no limit. Raises Unavailable."""
        most = self.rules(tenant).quota.tokens_per_day
        return max(0, most - await self.spent(tenant)) if most else None

    async def check_tokens(self, tenant: str) -> int | None:
        """`tokens_left`, if not 0. Raises ResourceExhausted, Unavailable."""
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
        """The bytes that may still be stored for a tenant, 0 at least; None: no limit.

        Raises Unavailable.
        """
        most = self.rules(tenant).quota.storage_bytes
        return max(0, most - await self.stored(tenant)) if most else None

    async def check_storage(self, tenant: str, wanted: int = 1) -> int | None:
        """`storage_left`, if at least `wanted`. Raises ResourceExhausted, Unavailable."""
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
"""How often a waiting run checks whether the quota, or the replicas that share it, have changed."""

_UNLIMITED_KINDS = (AssignmentKind.BASELINE, AssignmentKind.CHECK, AssignmentKind.EXAMINE, AssignmentKind.OPERATE)


@dataclass
class ConcurrencyLimiter:
    """A `Fleet` in which each run waits for a slot of its tenant and gets no more tokens than the tenant has left.

    Within one replica a tenant's quota of agents is exact. Replicas that drive executions of the same tenant share it
    evenly, each with at least one slot, by what each knows of the others: until a claim arrives from the log (some
    milliseconds) a replica may use slots that it has to give up.
    """

    fleet: Fleet
    quotas: Quotas
    me: str = ""
    sharers: Callable[[str], Collection[str]] = lambda _: ()
    taken: Counter[str] = field(default_factory=Counter[str])
    _lines: dict[str, deque[object]] = field(default_factory=dict[str, deque[object]])
    _released: asyncio.Event = field(default_factory=asyncio.Event)

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
        """Holds a slot of the tenant; yields the assignment with its limits."""
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
                released = self._released
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
        # A replica without a slot could wait for ever for its subtask of an execution that another replica drives.
        return max(1, most // len(sharers) + (sharers.index(self.me) < most % len(sharers)))

    async def _granted(self, assignment: Assignment[T]) -> Assignment[T]:
        room = await self.quotas.storage_left(assignment.task.tenant)
        assignment = _bounded(assignment, room, self._parts(assignment))
        tokens = await self.quotas.check_tokens(assignment.task.tenant)
        if tokens is None:
            return assignment
        task = assignment.task
        if isinstance(assignment, CodingAssignment) and assignment.resume:
            # The earlier usage of a resumed run counts towards its own limit, so only the day's quota bounds it here.
            return replace(assignment, task=_limited(task, self.quotas.rules(task.tenant).quota.tokens_per_day))
        return replace(assignment, task=_limited(task, max(1, tokens // self._parts(assignment))))

    def _parts(self, assignment: Assignment[T]) -> int:
        """How many runs share what is left."""
        return max(self.taken[assignment.task.tenant], assignment.task.num_agents, 1)

    def _changed(self) -> None:
        released, self._released = self._released, asyncio.Event()
        released.set()


def _bounded(assignment: Assignment[T], room: int | None, parts: int) -> Assignment[T]:
    """The assignment with a limit for its checkpoints: for a moment a run has two of them."""
    if room is None or not isinstance(assignment, CodingAssignment):
        return assignment
    return cast("Assignment[T]", replace(assignment, checkpoint_bytes=room // (2 * parts)))


def _limited(task: Task, tokens: int) -> Task:
    """The task with at most `tokens` for one run."""
    limits = task.constraints.limits
    most = min(limits.max_tokens or tokens, tokens)
    return replace(task, constraints=replace(task.constraints, limits=replace(limits, max_tokens=most)))


Pieces = Callable[[int], AsyncGenerator[StoredPiece | None, None]]
"""The pieces of a stream from a position on, without an end; None once all stored ones were yielded."""

_DAY = 86_400
_TIMEOUT_SECONDS = 5.0
_HINT = "restart the orchestrator"


class StorageUsage:
    """Sums the bytes in streams by tenant. An async context: inside, they are read in the background, then followed.

    Memory grows with the numbers of tenants, days and places in use, not with the bytes.

    Args:
        kept_seconds: How long the streams keep pieces; 0: for ever.
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
        self._streams = [_StreamUsage(name, pieces, snapshots) for name, pieces in streams.items()]

    async def __aenter__(self) -> StorageUsage:
        for stream in self._streams:
            stream.follower.begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(stream.follower.stop() for stream in self._streams))

    async def bytes_of(self, tenant: str) -> int:
        """The bytes that a tenant has stored. Raises Unavailable while they are being counted."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await asyncio.gather(*(stream.follower.wait_caught_up() for stream in self._streams))
        except TimeoutError:
            raise Unavailable("the tenant's storage is still being counted", hint="try again soon") from None
        for stream in self._streams:
            stream.follower.check()
        return self._sum(tenant)

    def by_tenant(self) -> Mapping[str, int]:
        """The bytes counted so far of every tenant."""
        tenants = {name for stream in self._streams for name in stream.tenants}
        return {tenant: self._sum(tenant) for tenant in sorted(tenants)}

    def _sum(self, tenant: str) -> int:
        oldest = int(self._clock() // _DAY) - self._kept_days if self._kept_days else 0
        return sum(stream.bytes_of(tenant, oldest) for stream in self._streams)


class _StreamUsage:
    """The bytes of each tenant in one stream: by day, and by place where content is replaced."""

    def __init__(self, name: str, pieces: Pieces, snapshots: Snapshots | None) -> None:
        self.tenants: defaultdict[str, tuple[Counter[int], dict[str, int]]] = defaultdict(lambda: (Counter(), {}))
        saved = (
            None
            if snapshots is None
            else snapshots.of(f"held-{name}", sys.modules[__name__], dump=self._dump, load=self._load)
        )
        self.follower = Follower(name, pieces, self._take, hint=_HINT, snapshot=saved)

    def bytes_of(self, tenant: str, oldest: int) -> int:
        """The bytes of a tenant, without days before `oldest`."""
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
