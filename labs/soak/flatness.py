"""Whether a figure stands still: the Theil-Sen slope of its second half, held against a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How much a figure may grow over the judged time: the larger of a share of its middle and an amount.

    A `momentary` one also has what is at work just then: of it, the least of a few samples in a row counts, which
    what is never given back raises all the same.
    """

    share: float
    least: float
    momentary: bool = False

    def of(self, middle: float) -> float:
        return max(self.share * middle, self.least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One figure: where it began and ended, its middle, and its growth over the judged time beside what is allowed."""

    name: str
    first: float
    last: float
    middle: float
    growth: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.allowed


BOUNDS: Mapping[str, Bound] = {
    "memory_mib": Bound(share=0.05, least=32),
    # What the fleet knows of executions stays in memory, some 7 KiB of each.
    "orchestrator_mib": Bound(share=0.05, least=12),
    "agents_mib": Bound(share=0.08, least=20),
    # The heap of nats-server is what its streams index and the block that each writes to, up to 8 MiB a stream (seen in
    # its profile), which fills once and is then taken anew: two of them may have filled. Beside it there is garbage up
    # to as much again before Go collects (GOGC=100), so that one collection earlier or later is worth all that is in
    # use. Under some 700 times the events of a soak it stands still once as much goes as comes.
    "nats_live_mib": Bound(share=0.25, least=16),
    "nats_mib": Bound(share=0.30, least=32),
    "descriptors": Bound(share=0.05, least=24, momentary=True),
    "threads": Bound(share=0.05, least=16, momentary=True),
    "processes": Bound(share=0.10, least=6, momentary=True),
    "workspaces": Bound(share=0.25, least=4, momentary=True),
    "files": Bound(share=0.10, least=60, momentary=True),
    "files_mib": Bound(share=0.10, least=4, momentary=True),
    "nats_disk_mib": Bound(share=0.15, least=16),
    "ray_files": Bound(share=0.10, least=30),
    "ray_disk_mib": Bound(share=0.10, least=8),
    "messages": Bound(share=0.10, least=300),
    "stream_mib": Bound(share=0.15, least=4),
    "consumers": Bound(share=0.25, least=8),
}


FILLING = ("nats_mib", "nats_live_mib", "nats_disk_mib", "messages", "stream_mib")
"""What first fills, for minutes after each start of nats-server; in short runs it is told and not judged."""
FILLING_MINUTES = 15.0
_IN_A_ROW = 4


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points (Theil 1950, Sen 1968), which outliers do not move."""
    found = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] != a[0]]
    return median(found) if found else 0.0


def lows(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The least of each few values in a row, at the last one's time; at the beginning of fewer."""
    return [
        (at, min(value for _, value in points[max(0, n - _IN_A_ROW + 1) : n + 1])) for n, (at, _) in enumerate(points)
    ]


def judge(samples: Sequence[Mapping[str, float]], bounds: Mapping[str, Bound] = BOUNDS) -> list[Judged]:
    """Every figure that has a bound, over the second half of the time that the samples (by their `at`) cover."""
    if not samples:
        return []
    middle_of_time = (samples[0]["at"] + samples[-1]["at"]) / 2
    judged: list[Judged] = []
    for name, bound in bounds.items():
        points = [(one["at"], one[name]) for one in samples if name in one]
        points = [one for one in (lows(points) if bound.momentary else points) if one[0] >= middle_of_time]
        if len(points) < 2:
            continue
        middle = median(value for _, value in points)
        judged.append(
            Judged(
                name=name,
                first=points[0][1],
                last=points[-1][1],
                middle=middle,
                growth=slope(points) * (points[-1][0] - points[0][0]),
                allowed=bound.of(middle),
            )
        )
    return judged
