"""The fair queue: which of the waiting executions begins next.

Urgent ones come first, tenants and callers take turns, nobody waits for ever. The next tenant is the one with the
least of its share at work, however much the others submit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import MAX_PRIORITY

LEAST_WEIGHT = 0.01
"""What a tenant has at least where the shares of others leave nothing."""
AGING_SECONDS = 300.0
"""After so long without a turn, what waits counts as one priority higher."""
NEVER = float("-inf")
Caller = tuple[str, str]
"""A tenant and one of its callers: the unit that places are shared by."""
Line = tuple[str, str, int]
"""What one caller has waiting at one priority: the unit that takes turns, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTurns:
    """How tenants stand when places are given.

    The next place is that of the tenant with the fewest agents at work for its weight, among equals of the one with the
    lowest pass: what it was given so far, each agent counted as one divided by the weight.

    Source: weighted max-min fairness (Bertsekas and Gallager, Data Networks, 1992; with one resource it is Dominant
    Resource Fairness, Ghodsi et al., NSDI 2011), equals by stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528,
    1995), where who was idle begins at the present pass (start-time fair queueing, Goyal et al., SIGCOMM 1996).

    Attributes:
        at_work: Agents of each tenant that work now; who is not in it has none.
        weights: Of each tenant, 1 where it is not in it.
        passes: Of each tenant, 0 where it is not in it.
    """

    at_work: Mapping[str, int] = field(default_factory=dict[str, int])
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    passes: Mapping[str, float] = field(default_factory=dict[str, float])

    def place(self, tenant: str) -> tuple[float, float]:
        """Where a tenant stands; the least is next."""
        return self.at_work.get(tenant, 0) / self.weights.get(tenant, 1.0), self.passes.get(tenant, 0.0)

    def with_place(self, tenant: str, agents: int) -> TenantTurns:
        """How they stand once a tenant was given a place for so many agents."""
        weight = self.weights.get(tenant, 1.0)
        return TenantTurns(
            at_work={**self.at_work, tenant: self.at_work.get(tenant, 0) + agents},
            weights=self.weights,
            passes={**self.passes, tenant: self.passes.get(tenant, 0.0) + agents / weight},
        )


class Passes:
    """Remembers passes between one time that places are given and the next."""

    def __init__(self) -> None:
        self._passes: dict[str, float] = {}
        self._waited: frozenset[str] = frozenset()
        self._present = 0.0

    def waiting(self, tenants: Collection[str]) -> Mapping[str, float]:
        """The passes of those that wait now; who did not the last time begins no lower than the present one."""
        passes = {tenant: self._passes.get(tenant, 0.0) for tenant in tenants}
        for tenant in passes.keys() - self._waited:
            passes[tenant] = max(passes[tenant], self._present)
        self._waited = frozenset(passes)
        # Whoever is behind the present one would begin there anyway, so nothing is to be remembered of it.
        idle = {name: at for name, at in self._passes.items() if name not in passes and at > self._present}
        self._passes = {**idle, **passes}
        return passes

    def charge(self, tenant: str, agents: int, weight: float) -> None:
        """A place for so many agents was given to a tenant."""
        self._present = max(self._present, self._passes.get(tenant, 0.0))
        self._passes[tenant] = self._passes.get(tenant, 0.0) + agents / weight


def weights(tenants: Collection[str], share: Callable[[str], float]) -> dict[str, float]:
    """What each of these tenants weighs.

    Who has a share (above 0) weighs that; what is left is the others' in equal parts, `LEAST_WEIGHT` at least.
    """
    named = {tenant: share(tenant) for tenant in tenants}
    others = [tenant for tenant, value in named.items() if value <= 0]
    remainder = max(0.0, 1.0 - sum(value for value in named.values() if value > 0))
    equal = max(LEAST_WEIGHT, remainder / len(others)) if others else 0.0
    return {tenant: value if value > 0 else equal for tenant, value in named.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedExecution:
    """An execution that nobody drives yet, for so many `agents`. `accepted_at` is in seconds of the clock of `now`."""

    execution_id: str
    tenant: str
    caller: str
    priority: int
    accepted_at: float
    agents: int = 1

    @classmethod
    def of(cls, state: ExecutionState) -> QueuedExecution:
        """What the queue needs to know of an execution; its clock is Unix time."""
        return cls(
            execution_id=state.execution_id,
            tenant=state.task.tenant,
            caller=state.task.caller,
            priority=state.task.priority,
            accepted_at=datetime.fromisoformat(state.started_at).timestamp(),
            agents=max(1, state.task.num_agents),
        )

    @property
    def by(self) -> Caller:
        return self.tenant, self.caller

    @property
    def line(self) -> Line:
        return self.tenant, self.caller, self.priority

    def level(self, now: float, last_turn: float = NEVER) -> int:
        """The priority, one higher for every `AGING_SECONDS` in which its line had no turn, up to `MAX_PRIORITY`.

        A line that has its turns does not age, so that a long backlog never becomes more urgent than what others of
        the same priority submit later.
        """
        idle = now - max(self.accepted_at, last_turn)
        return min(MAX_PRIORITY, self.priority + max(0, int(idle // AGING_SECONDS)))


def in_order(
    waiting: Iterable[QueuedExecution],
    running: Mapping[Caller, int],
    *,
    now: float,
    served: Mapping[Line, float] | None = None,
    tenants: TenantTurns | None = None,
) -> list[QueuedExecution]:
    """All of them in the order in which they begin if each begins at once and none ends.

    The next is the oldest of its line, and its line is that of the highest level (`QueuedExecution.level`: the
    priority, and what it gained by waiting), among equals of the caller with the fewest running, then the one whose
    last turn was longest ago, then the one with the oldest. So whatever others submit, a line has a turn in every
    `(MAX_PRIORITY - priority) * AGING_SECONDS`, and then as often as there are places for each line at the top.
    Takes O(n log n) for a handful of tenants.

    Source: fair queueing, one queue for each source served in turn (Nagle, RFC 970, 1985; Demers, Keshav and Shenker,
    SIGCOMM 1989), with aging (Silberschatz, Galvin and Gagne, Operating System Concepts, on priority scheduling).

    Args:
        waiting: What waits, in any order.
        running: How many executions of each caller are driven now; who is not in it has none.
        now: The time, in seconds.
        served: When a line last had a turn, in seconds. Whoever begins an execution notes `now` here under its `line`.
        tenants: They take turns first, and priorities count among a tenant's own only; None: all are one tenant's.
    """
    lines: dict[Line, list[QueuedExecution]] = {}
    for execution in sorted(waiting, key=lambda each: (each.accepted_at, each.execution_id), reverse=True):
        lines.setdefault(execution.line, []).append(execution)
    counts, turns, shares = dict(running), dict(served or {}), tenants

    def sort_key(head: QueuedExecution) -> tuple[object, ...]:
        head_place = shares.place(head.tenant) if shares is not None else (0.0, 0.0)
        return *head_place, *_turn(head, counts, turns, now)

    heap: list[tuple[tuple[Any, ...], Line]] = [(sort_key(line[-1]), name) for name, line in lines.items()]
    heapq.heapify(heap)
    ordered: list[QueuedExecution] = []
    while heap:
        priority, name = heap[0]
        line = lines[name]
        place = sort_key(line[-1])
        if place > priority:
            # Another line of the same caller, or of the same tenant, had a turn since.
            heapq.heapreplace(heap, (place, name))
            continue
        execution = line.pop()
        ordered.append(execution)
        counts[execution.by] = counts.get(execution.by, 0) + 1
        turns[name] = now
        shares = shares.with_place(execution.tenant, execution.agents) if shares is not None else None
        if line:
            heapq.heapreplace(heap, (sort_key(line[-1]), name))
        else:
            heapq.heappop(heap)
    return ordered


def _turn(
    head: QueuedExecution, running: Mapping[Caller, int], turns: Mapping[Line, float], now: float
) -> tuple[int, int, float, float, str]:
    """Where the oldest of a line stands among those of the others, the first being the least."""
    last = turns.get(head.line, NEVER)
    return -head.level(now, last), running.get(head.by, 0), last, head.accepted_at, head.execution_id


def check_room(
    queued_total: int,
    queued_of_caller: int,
    *,
    max_queued: int,
    max_queued_per_caller: int,
    queued_of_tenant: int | None = None,
    tenants: int = 1,
) -> None:
    """Whether one more execution may wait.

    A full queue still takes in what is less than an even part of it, so that nobody is kept out by another tenant's
    backlog; so at most twice `max_queued` wait.

    Args:
        max_queued: The most that may wait.
        max_queued_per_caller: The most that may wait of one caller.
        queued_of_tenant: How many of them are the tenant's; None: all.
        tenants: How many tenants have some waiting, this one among them.

    Raises:
        ResourceExhausted: The queue, or the caller's part of it, is full.
    """
    if queued_of_caller >= max_queued_per_caller:
        raise ResourceExhausted(
            f"{queued_of_caller} executions of this caller are waiting",
            hint=f"at most {max_queued_per_caller} are allowed; submit more when some of them have started",
        )
    queued = queued_total if queued_of_tenant is None else queued_of_tenant
    if full_for(queued_total, queued, most=max_queued, tenants=tenants):
        raise ResourceExhausted(
            f"{queued_total} executions are waiting", hint=f"at most {max_queued} are allowed; try again later"
        )


def full_for(total: int, own: int, *, most: int, tenants: int) -> bool:
    """Whether a place of which tenants share `most` takes no more of one that has `mine` of `total` in it.

    `tenants` of them have some there, this one among them. See `check_room`.
    """
    return total >= most and own >= most // max(1, tenants)
