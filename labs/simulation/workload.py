"""Who hands in what, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

BACKGROUND, NORMAL, URGENT = 0, 3, 7
STEADY = tuple(f"steady-{number:02}" for number in range(1, 13))
HOURS = 5.0
"""In so long everything is handed in."""
MEAN_STEPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A task as it comes in. `steps` are those of each of its agents."""

    at: float
    caller: str
    priority: int
    steps: tuple[int, ...]
    check_seconds: float


def workload(random: Random, executions: int) -> list[Arrival]:
    """Arrivals in their order: a nightly batch, three bursts of two callers, a dozen steady callers, urgent ones."""
    span = HOURS * 3600
    arrivals: list[Arrival] = []

    def add(at: float, caller: str, priority: int, agents: int) -> None:
        steps = tuple(_steps(random) for _ in range(agents))
        check = random.uniform(20, 90)
        arrivals.append(Arrival(at=at, caller=caller, priority=priority, steps=steps, check_seconds=check))

    for _ in range(executions // 10):
        add(random.uniform(0, 60), "nightly", BACKGROUND, random.choice((1, 3)))
    for burst in range(3):
        begin = (0.5 + 1.5 * burst) * 3600
        for caller, share, late in (("greedy-1", 9, 0), ("greedy-2", 4, 300)):
            for _ in range(executions * share // 100):
                add(begin + late + random.uniform(0, 120), caller, NORMAL, 3)
    for _ in range(executions * 5 // 100):
        add(random.uniform(0, span), "urgent", URGENT, 1)
    while len(arrivals) < executions:
        add(random.uniform(0, span), random.choice(STEADY), NORMAL, random.choice((1, 3, 3, 5)))
    return sorted(arrivals, key=lambda arrival: arrival.at)


def _steps(random: Random) -> int:
    """Most runs are short and some are very long: log-normal."""
    sigma = 0.7
    return max(2, round(random.lognormvariate(math.log(MEAN_STEPS) - sigma * sigma / 2, sigma)))
