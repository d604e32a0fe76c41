"""Which of the executions that wait begins next: urgent ones first, callers by turns, nobody for ever."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import MAX_PRIORITY

AGING_SECONDS = 300.0
"""After so long a wait an execution counts as one priority higher."""

Caller = tuple[str, str]
"""A tenant and one of its callers: the unit that turns are taken by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An execution that nobody drives yet. `accepted_at` is in seconds of the clock that `now` is read from."""

    execution_id: str
    tenant: str
    caller: str
    priority: int
    accepted_at: float

    @classmethod
    def of(cls, state: ExecutionState) -> Waiting:
        """What the queue needs to know of an execution; its clock is Unix time."""
        return cls(
            execution_id=state.execution_id,
            tenant=state.task.tenant,
            caller=state.task.caller,
            priority=state.task.priority,
            accepted_at=datetime.fromisoformat(state.started_at).timestamp(),
        )

    @property
    def by(self) -> Caller:
        return self.tenant, self.caller

    def level(self, now: float, aging_seconds: float = AGING_SECONDS) -> int:
        """The priority, one higher for every `aging_seconds` waited, up to the highest that a caller can ask for.

        The limit is what keeps a long backlog from growing older than everybody else's urgent work: at the top, callers
        take turns whatever they waited.
        """
        waited = now - self.accepted_at
        if waited < aging_seconds or self.priority >= MAX_PRIORITY:
            return self.priority
        return min(MAX_PRIORITY, self.priority + int(waited // aging_seconds))


def next_up(
    waiting: Sequence[Waiting],
    running: Mapping[Caller, int],
    *,
    now: float,
    served: Mapping[Caller, float] | None = None,
    aging_seconds: float = AGING_SECONDS,
) -> Waiting | None:
    """The execution to begin next, None where none waits.

    The highest level first (aging; see `Waiting.level`); among equals that of the caller with the fewest running, then
    of the one whose last turn was longest ago, then the oldest. An execution of the lowest priority thus has a turn
    of its caller's before anything that its caller handed in later and no less than `MAX_PRIORITY * aging_seconds`
    after it.

    Source: fair queueing, one queue for each source served in turn (Nagle, RFC 970, 1985; Demers, Keshav and Shenker,
    SIGCOMM 1989), with aging (Silberschatz, Galvin and Gagne, Operating System Concepts, on priority scheduling).

    Args:
        waiting: What waits, in any order.
        running: How many executions of each caller are driven now; who is not in it has none.
        now: The time, in seconds.
        served: When a caller's last turn was, in seconds. Without it, a caller with a long backlog comes before those
            who arrived later wherever there are fewer places than callers.
        aging_seconds: How long a wait is worth one level.
    """
    turns = served or {}
    never = float("-inf")

    def key(one: Waiting) -> tuple[int, int, float, float, str]:
        by = one.by
        level = one.level(now, aging_seconds)
        return -level, running.get(by, 0), turns.get(by, never), one.accepted_at, one.execution_id

    return min(waiting, key=key, default=None)


def in_order(
    waiting: Sequence[Waiting],
    running: Mapping[Caller, int],
    *,
    now: float,
    served: Mapping[Caller, float] | None = None,
    aging_seconds: float = AGING_SECONDS,
) -> list[Waiting]:
    """All of them in the order in which `next_up` would name them if each began at once and none ended.

    Takes O(n log n). The arguments are those of `next_up`.
    """
    levels: dict[int, dict[Caller, list[Waiting]]] = {}
    for one in sorted(waiting, key=lambda one: (one.accepted_at, one.execution_id), reverse=True):
        levels.setdefault(one.level(now, aging_seconds), {}).setdefault(one.by, []).append(one)
    counts, turns = dict(running), dict(served or {})
    ordered: list[Waiting] = []
    for level in sorted(levels, reverse=True):
        queues = levels[level]
        heap = [_turn(queue[-1], counts, turns) for queue in queues.values()]
        heapq.heapify(heap)
        while heap:
            one = queues[heap[0][-1]].pop()
            ordered.append(one)
            counts[one.by] = counts.get(one.by, 0) + 1
            turns[one.by] = now
            if queue := queues[one.by]:
                heapq.heapreplace(heap, _turn(queue[-1], counts, turns))
            else:
                heapq.heappop(heap)
    return ordered


def _turn(
    head: Waiting, counts: Mapping[Caller, int], turns: Mapping[Caller, float]
) -> tuple[int, float, float, str, Caller]:
    last = turns.get(head.by, float("-inf"))
    return counts.get(head.by, 0), last, head.accepted_at, head.execution_id, head.by


def check_room(queued_total: int, queued_of_caller: int, *, max_queued: int, max_queued_per_caller: int) -> None:
    """Whether one more execution may wait.

    Args:
        queued_total: How many wait already.
        queued_of_caller: How many of them are the caller's.
        max_queued: The most that may wait.
        max_queued_per_caller: The most that may wait of one caller.

    Raises:
        ResourceExhausted: The queue, or the caller's part of it, is full.
    """
    if queued_of_caller >= max_queued_per_caller:
        raise ResourceExhausted(
            f"{queued_of_caller} executions of this caller are waiting",
            hint=f"at most {max_queued_per_caller} may; hand in more when some of them have begun",
        )
    if queued_total >= max_queued:
        raise ResourceExhausted(
            f"{queued_total} executions are waiting", hint=f"at most {max_queued} may; try again later"
        )
