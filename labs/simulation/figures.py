"""What a simulation came to, in numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labs.simulation.ledger import Tally
from labs.simulation.scale import World

WINDOW_SECONDS = 300.0
"""Fairness is measured over so long: of callers that had something waiting all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one simulation. Times are in seconds, shares between 0 and 1."""

    executions: int
    hours: float
    waits: Mapping[str, tuple[float, float, float]]
    by_priority: Mapping[int, tuple[float, float, float]]
    fairness: float
    worst_fairness: float
    windows: int
    busy: float
    lost: float
    take_overs: tuple[float, float, float]
    counts: Mapping[str, int]


def percentiles(values: Iterable[float], shares: Sequence[float] = (0.5, 0.95, 0.99)) -> tuple[float, ...]:
    """The nearest-rank percentiles; zeros of nothing."""
    ordered = sorted(values)
    if not ordered:
        return tuple(0.0 for _ in shares)
    return tuple(ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in shares)


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 where all have the same, 1/n where one has everything (Jain, Chiu, Hawe, 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def kind(caller: str) -> str:
    return caller.partition("-")[0]


def figures(world: World) -> Figures:
    tally = world.tally
    waits: dict[str, list[float]] = defaultdict(list)
    by_priority: dict[int, list[float]] = defaultdict(list)
    for job in tally.jobs:
        waited = min(run.begun_at for run in job.runs) - job.accepted_at
        waits[kind(job.arrival.caller)].append(waited)
        by_priority[job.arrival.priority].append(waited)
    windows = fairness_windows(tally)
    last = max((job.arrival.at for job in tally.jobs), default=0.0)
    busy = [busy for at, _, busy in tally.samples if at <= last]
    return Figures(
        executions=len(tally.jobs),
        hours=world.clock.now / 3600,
        waits={name: _three(values) for name, values in sorted(waits.items())},
        by_priority={name: _three(values) for name, values in sorted(by_priority.items())},
        fairness=sum(windows) / len(windows) if windows else 1.0,
        worst_fairness=min(windows, default=1.0),
        windows=len(windows),
        busy=sum(busy) / len(busy) / world.nodes.capacity,
        lost=world.nodes.lost_seconds / world.nodes.worked_seconds,
        take_overs=_three(tally.take_overs),
        counts={
            "replicas that crashed": tally.crashes,
            "replicas that stood still": tally.sleeps,
            "nodes that failed": world.nodes.failures,
            "executions taken over": len(tally.take_overs),
            "runs put on another node": tally.reassigned,
            "runs given up": tally.lost_runs,
            "claims refused": tally.stale_claims,
            "late writes refused": tally.fenced,
            "tasks refused at first": sum(tally.refused.values()),
        },
    )


def _three(values: Iterable[float]) -> tuple[float, float, float]:
    first, second, third = percentiles(values)
    return first, second, third


def fairness_windows(tally: Tally) -> list[float]:
    """Jain's index of the executions begun in each window, over the callers of one priority that waited throughout."""
    callers = {job.arrival.caller: job.arrival.priority for job in tally.jobs}
    begun: dict[tuple[int, str], int] = defaultdict(int)
    for job in tally.jobs:
        begun[int(job.begun_at // WINDOW_SECONDS), job.arrival.caller] += 1
    busy = {caller: _waiting_throughout(tally.waiting[caller]) for caller in callers}
    found: list[float] = []
    for window in range(max((window for window, _ in begun), default=0) + 1):
        for priority in set(callers.values()):
            waited = [c for c, p in callers.items() if p == priority and window in busy[c]]
            if len(waited) > 1:
                found.append(jain([begun[window, caller] for caller in waited]))
    return found


def _waiting_throughout(changes: Sequence[tuple[float, int]]) -> set[int]:
    """The windows in which something waited all the time."""
    empty: set[int] = set()
    before_at, before = 0.0, 0
    for at, count in [*changes, (changes[-1][0] + WINDOW_SECONDS, 0)]:
        if before == 0:
            empty.update(range(int(before_at // WINDOW_SECONDS), int(at // WINDOW_SECONDS) + 1))
        before_at, before = at, count
    return set(range(int(before_at // WINDOW_SECONDS))) - empty
