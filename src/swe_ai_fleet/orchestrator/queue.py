"""The fair queue: which of the waiting executions starts next.

Urgent ones come first, tenants and callers take turns, none waits for ever. The next tenant is the one that uses the
least of its share, however much the others submit.
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
"""The least weight of a tenant, where the shares of others leave nothing."""
AGING_SECONDS = 300.0
"""For each such time without a turn, a line's priority rises by one."""
NEVER = float("-inf")
Caller = tuple[str, str]
"""A tenant and one of its callers, among whom places are shared."""
Line = tuple[str, str, int]
"""The waiting executions of one caller at one priority, oldest first; lines take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTurns:
    """The order of tenants when places are given.

    The next place goes to the tenant with the fewest running agents for its weight, among equals to the one with the
    lowest pass: the number of agents that it got so far, each divided by the weight.

    Source: weighted max-min fairness (Bertsekas and Gallager, Data Networks, 1992; with one resource it is Dominant
    Resource Fairness, Ghodsi et al., NSDI 2011), equals by stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528,
    1995), where idle tenants start at the current pass (start-time fair queueing, Goyal et al., SIGCOMM 1996).

    Attributes:
        at_work: Running agents of each tenant, 0 where a tenant is missing.
        weights: The weight of each tenant, 1 where it is missing.
        passes: The pass of each tenant, 0 where it is missing.
    """

    at_work: Mapping[str, int] = field(default_factory=dict[str, int])
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    passes: Mapping[str, float] = field(default_factory=dict[str, float])

    def place(self, tenant: str) -> tuple[float, float]:
        """The sort key of a tenant; the least is next."""
        return self.at_work.get(tenant, 0) / self.weights.get(tenant, 1.0), self.passes.get(tenant, 0.0)

    def with_place(self, tenant: str, agents: int) -> TenantTurns:
        """The order after a tenant got a place for so many agents."""
        weight = self.weights.get(tenant, 1.0)
        return TenantTurns(
            at_work={**self.at_work, tenant: self.at_work.get(tenant, 0) + agents},
            weights=self.weights,
            passes={**self.passes, tenant: self.passes.get(tenant, 0.0) + agents / weight},
        )


class Passes:
    """Remembers passes from one round of giving places to the next."""

    def __init__(self) -> None:
        self._passes: dict[str, float] = {}
        self._waited: frozenset[str] = frozenset()
        self._present = 0.0

    def waiting(self, tenants: Collection[str]) -> Mapping[str, float]:
        """The passes of tenants that wait now; one that did not wait before starts at the current pass or above."""
        passes = {tenant: self._passes.get(tenant, 0.0) for tenant in tenants}
        for tenant in passes.keys() - self._waited:
            passes[tenant] = max(passes[tenant], self._present)
        self._waited = frozenset(passes)
        # A tenant below the current pass would start there anyway, so its pass need not be remembered.
        idle = {name: at for name, at in self._passes.items() if name not in passes and at > self._present}
        self._passes = {**idle, **passes}
        return passes

    def charge(self, tenant: str, agents: int, weight: float) -> None:
        """Record that a tenant got a place for so many agents."""
        self._present = max(self._present, self._passes.get(tenant, 0.0))
        self._passes[tenant] = self._passes.get(tenant, 0.0) + agents / weight


def weights(tenants: Collection[str], share: Callable[[str], float]) -> dict[str, float]:
    """The weight of each of these tenants: its share, where it has one (above 0).

    The others divide what is left in equal parts, each at least `LEAST_WEIGHT`.
    """
    named = {tenant: share(tenant) for tenant in tenants}
    others = [tenant for tenant, value in named.items() if value <= 0]
    remainder = max(0.0, 1.0 - sum(value for value in named.values() if value > 0))
    equal = max(LEAST_WEIGHT, remainder / len(others)) if others else 0.0
    return {tenant: value if value > 0 else equal for tenant, value in named.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedExecution:
    """A waiting execution of so many `agents`. `accepted_at` is in seconds of the same clock as `now`."""

    execution_id: str
    tenant: str
    caller: str
    priority: int
    accepted_at: float
    agents: int = 1

    @classmethod
    def of(cls, state: ExecutionState) -> QueuedExecution:
        """The queue's entry for an execution; its clock is Unix time."""
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

        A line that gets its turns does not age, so that a long backlog never becomes more urgent than later submissions
        of others with the same priority.
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
    """The waiting executions in the order in which they start if each starts at once and none ends.

    The next is the oldest of its line, and its line is that of the highest level (`QueuedExecution.level`: the
    priority, and what it gained by waiting), among equals of the caller with the fewest running, then the one whose
    last turn was longest ago, then the one with the oldest. So whatever others submit, a line has a turn in every
    `(MAX_PRIORITY - priority) * AGING_SECONDS`, and then as often as there are places for each line at the top.
    Takes O(n log n) for a handful of tenants.

    Source: fair queueing, one queue for each source served in turn (Nagle, RFC 970, 1985; Demers, Keshav and Shenker,
    SIGCOMM 1989), with aging (Silberschatz, Galvin and Gagne, Operating System Concepts, on priority scheduling).

    Args:
        waiting: The waiting executions, in any order.
        running: How many executions of each caller are driven now, 0 where a caller is missing.
        now: The time, in seconds.
        served: When a line last had a turn, in seconds. On starting an execution the caller notes `now` for its `line`.
        tenants: They take turns first, and priorities count within a tenant only; None: all are one tenant's.
    """
    lines: dict[Line, list[QueuedExecution]] = {}
    for execution in sorted(waiting, key=lambda each: (each.accepted_at, each.execution_id), reverse=True):
        lines.setdefault(execution.line, []).append(execution)
    counts, turns, shares = dict(running), dict(served or {}), tenants

    def sort_key(head: QueuedExecution) -> tuple[object, ...]:
        turn_of_tenant = shares.place(head.tenant) if shares is not None else (0.0, 0.0)
        return *turn_of_tenant, *_turn(head, counts, turns, now)

    heap: list[tuple[tuple[Any, ...], Line]] = [(sort_key(line[-1]), name) for name, line in lines.items()]
    heapq.heapify(heap)
    ordered: list[QueuedExecution] = []
    while heap:
        old_key, name = heap[0]
        line = lines[name]
        new_key = sort_key(line[-1])
        if new_key > old_key:
            # Another line of the same caller, or of the same tenant, had a turn since.
            heapq.heapreplace(heap, (new_key, name))
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
    """The sort key of the oldest of a line among those of the other lines; the least is first."""
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
    """Check that one more execution may wait.

    A full queue still accepts executions of a tenant with less than an equal share of it, so that another tenant's
    backlog keeps no tenant out; so at most twice `max_queued` wait.

    Args:
        max_queued: The most that may wait.
        max_queued_per_caller: The most that may wait of one caller.
        queued_of_tenant: How many of them are the tenant's; None: all.
        tenants: How many tenants have executions waiting, including this one.

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
    """Whether a resource of `most` items, shared by `tenants` tenants, is full for one that has `own` of the `total`.

    The tenant itself counts among `tenants`. See `check_room`.
    """
    return total >= most and own >= most // max(1, tenants)
