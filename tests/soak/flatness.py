"""Whether a figure stands still: the Theil-Sen slope of its second half, held against a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How much a figure may grow over the judged time: the larger of a share of its middle and an amount."""

    share: float
    least: float

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
    "pss_mib": Bound(share=0.05, least=32),
    "orchestrator_mib": Bound(share=0.05, least=12),
    "agents_mib": Bound(share=0.08, least=24),
    # The heap of nats-server is the block that each stream writes to, up to 8 MiB a stream (seen in its profile), which
    # fills once and is then taken anew: two of them may have filled. Beside it there is garbage up to as much again
    # before Go collects (GOGC=100), so that one collection earlier or later is worth all that is in use.
    "nats_live_mib": Bound(share=0.25, least=16),
    "nats_mib": Bound(share=0.30, least=32),
    "descriptors": Bound(share=0.05, least=24),
    "threads": Bound(share=0.05, least=16),
    "processes": Bound(share=0.10, least=6),
    "workspaces": Bound(share=0.25, least=4),
    "files": Bound(share=0.10, least=60),
    "files_mib": Bound(share=0.10, least=4),
    "nats_disk_mib": Bound(share=0.15, least=16),
    "ray_files": Bound(share=0.10, least=30),
    "ray_disk_mib": Bound(share=0.10, least=8),
    "messages": Bound(share=0.10, least=300),
    "stream_mib": Bound(share=0.15, least=4),
    "consumers": Bound(share=0.25, least=8),
}


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points (Theil 1950, Sen 1968), which outliers do not move."""
    found = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] != a[0]]
    return median(found) if found else 0.0


def judge(samples: Sequence[Mapping[str, float]], bounds: Mapping[str, Bound] = BOUNDS) -> list[Judged]:
    """Every figure that has a bound, over the second half of the time that the samples (by their `at`) cover."""
    if not samples:
        return []
    middle_of_time = (samples[0]["at"] + samples[-1]["at"]) / 2
    later = [one for one in samples if one["at"] >= middle_of_time]
    judged: list[Judged] = []
    for name, bound in bounds.items():
        points = [(one["at"], one[name]) for one in later if name in one]
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
