"""Figures: counts of a range of time, durations as quantile sketches, and their history.

A sketch keeps quantiles of many durations in little memory; the history is fine for recent times and coarse for old
ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import accumulate
from typing import Any, Self

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.tool import Outcome

RELATIVE_ERROR = 0.02
"""The error of a quantile is at most this part of its value."""

LONGEST_MS = 30 * 86_400_000
"""A longer duration counts as this long."""

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)
Key = str
"""`<tenant>/<role>` of an execution; the role is empty where it is not known."""
_HOUR, _DAY = 3_600, 86_400


@dataclass(slots=True)
class Sketch:
    """Counts durations in buckets whose widths grow with the value, so that quantiles have a bounded relative error.

    Merging the sketches of parts gives the sketch of the whole. At most 543 buckets; durations are whole milliseconds,
    0 has a bucket of its own.

    Source: Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees",
    VLDB 2019. Without its collapsing of buckets, since the range of values is bounded here.
    """

    count: int = 0
    first: int = 0
    counts: list[int] = field(default_factory=list[int])

    def add(self, duration_ms: float) -> None:
        """Count a duration; a negative one counts as 0."""
        bucket = _bucket(duration_ms)
        self._cover(bucket, bucket)
        self.counts[bucket - self.first] += 1
        self.count += 1

    def merge(self, other: Sketch) -> None:
        """Add the counts of another sketch."""
        if not other.count:
            return
        first, counts = other.first, other.counts
        self._cover(first, first + len(counts) - 1)
        offset = first - self.first
        own_counts = self.counts
        for index, number in enumerate(counts, start=offset):
            if number:
                own_counts[index] += number
        self.count += other.count

    def quantile(self, q: float) -> float:
        """The `q`-quantile (0 to 1) of the durations, in milliseconds; 0 where none was counted.

        It is within `RELATIVE_ERROR` of the value at index `floor(q * (count - 1))` of the sorted durations.
        """
        if not self.count:
            return 0.0
        rank, total = math.floor(q * (self.count - 1)), 0
        for index, number in enumerate(self.counts):
            total += number
            if total > rank:
                return _middle(self.first + index)
        return _middle(self.first + len(self.counts) - 1)

    def histogram(self, bounds_ms: Sequence[float]) -> tuple[list[int], float]:
        """How many durations are at most as long as each of the (ascending) bounds, and the sum of all.

        In milliseconds. Both have the relative error of quantiles.
        """
        counts, total, index = [0] * len(bounds_ms), 0.0, 0
        for bucket, number in enumerate(self.counts, start=self.first):
            if not number:
                continue
            value = _middle(bucket)
            total += number * value
            while index < len(bounds_ms) and bounds_ms[index] < value:
                index += 1
            if index < len(bounds_ms):
                counts[index] += number
        return list(accumulate(counts)), total

    def _cover(self, first: int, last: int) -> None:
        """Extend the counts to these buckets."""
        if not self.counts:
            self.first = first
            self.counts = [0] * (last - first + 1)
            return
        if first < self.first:
            self.counts = [0] * (self.first - first) + self.counts
            self.first = first
        missing = last - (self.first + len(self.counts) - 1)
        if missing > 0:
            self.counts.extend([0] * missing)


def _bucket(duration_ms: float) -> int:
    """0 below 1 ms, else 1 more than the exponent of the smallest power of gamma that is not less."""
    if duration_ms < 1:
        return 0
    return 1 + max(0, math.ceil(math.log(min(duration_ms, LONGEST_MS)) / _LOG_GAMMA))


def _middle(bucket: int) -> float:
    """The value with the same relative error at both ends of a bucket."""
    return 0.0 if bucket == 0 else 2 * _GAMMA ** (bucket - 1) / (_GAMMA + 1)


class _Sums:
    """Values that are added up field by field: numbers, counters, sketches, and sums of their own by name."""

    __slots__ = ()

    def merge(self, other: Self) -> None:
        """Add the values of another."""
        for name in _names_of(type(self)):
            # Most of an event's figures are empty: this runs several times for each event.
            if not (more := getattr(other, name)):
                continue
            own: Any = getattr(self, name)
            if isinstance(own, Counter):
                own.update(more)
            elif isinstance(own, dict):
                for key, part in more.items():
                    if key not in own:
                        own[key] = type(part)()
                    own[key].merge(part)
            elif isinstance(own, (_Sums, Sketch)):
                own.merge(more)
            else:
                setattr(self, name, own + more)


@cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@dataclass(slots=True, kw_only=True)
class ModelFigures(_Sums):
    """One model's calls. `usage` has their tokens and, once the runs have ended, their cost."""

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    latency: Sketch = field(default_factory=Sketch)


@dataclass(slots=True, kw_only=True)
class ToolFigures(_Sums):
    """One operation's calls; `failures` failed or were refused, `cached` were answered from the cache."""

    calls: int = 0
    failures: int = 0
    cached: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    latency: Sketch = field(default_factory=Sketch)


@dataclass(slots=True, kw_only=True)
class Gauges(_Sums):
    """Running agents, driven executions and waiting executions at a moment, or the change of these numbers."""

    agents: int = 0
    driven: int = 0
    queued: int = 0

    def any(self) -> bool:
        """Whether any of them is not 0."""
        return bool(self.agents or self.driven or self.queued)


@dataclass(slots=True, kw_only=True)
class Figures(_Sums):
    """Counts, sums and latencies. Merging those of parts gives those of the whole.

    `stops` counts the ends of agents' runs by reason, `loops` the reactions to agents that go in circles, `lost` the
    runs whose process died, `takeovers` the executions that another orchestrator took over. `change` is the change of
    the gauges; `latencies` are by operation: deliberation, orchestration, workflow, agent, model_call, tool_call,
    check, queue_wait.
    """

    accepted: int = 0
    ended: Counter[ExecutionStatus] = field(default_factory=Counter[ExecutionStatus])
    agents_started: int = 0
    agents_succeeded: int = 0
    agents_failed: int = 0
    agents_cancelled: int = 0
    tool_failures: int = 0
    stops: Counter[str] = field(default_factory=Counter[str])
    loops: Counter[str] = field(default_factory=Counter[str])
    lost: int = 0
    takeovers: int = 0
    usage: Usage = field(default_factory=Usage)
    change: Gauges = field(default_factory=Gauges)
    latencies: dict[str, Sketch] = field(default_factory=dict[str, Sketch])
    models: dict[str, ModelFigures] = field(default_factory=dict[str, ModelFigures])
    tools: dict[str, ToolFigures] = field(default_factory=dict[str, ToolFigures])

    def add_duration(self, operation: str, duration_ms: float) -> Self:
        """Count how long an operation took."""
        self.latencies.setdefault(operation, Sketch()).add(duration_ms)
        return self


def _merge_at(into: dict[Key, Figures], key: Key, figures: Figures) -> None:
    if key not in into:
        into[key] = Figures()
    into[key].merge(figures)


def add_change(gauges: dict[Key, Gauges], key: Key, figures: Figures) -> None:
    """Add the change of the gauges, where there is one."""
    if figures.change.any():
        gauges.setdefault(key, Gauges()).merge(figures.change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The length of a tier's cells in seconds, and how long each is kept."""

    cell_seconds: int
    kept_seconds: int


TIERS = (
    Tier(cell_seconds=60, kept_seconds=6 * _HOUR),
    Tier(cell_seconds=600, kept_seconds=3 * _DAY),
    Tier(cell_seconds=_HOUR, kept_seconds=14 * _DAY),
    Tier(cell_seconds=_DAY, kept_seconds=92 * _DAY),
)
"""From fine to coarse; each cell is a whole number of those of the tier before. The last covers the whole log."""


@dataclass(slots=True, kw_only=True)
class TierCells:
    """The cells of one tier by their start in seconds, and what the gauges were before the first of them."""

    tier: Tier
    cells: dict[int, dict[Key, Figures]] = field(default_factory=dict[int, dict[Key, Figures]])
    before: dict[Key, Gauges] = field(default_factory=dict[Key, Gauges])
    dropped_until: int = 0

    def add(self, at: float, key: Key, figures: Figures) -> None:
        cell = int(at) // self.tier.cell_seconds * self.tier.cell_seconds
        if cell < self.dropped_until:
            add_change(self.before, key, figures)
            return
        _merge_at(self.cells.setdefault(cell, {}), key, figures)

    def drop(self, now: float) -> None:
        """Forget cells that are too old, except for their effect on the gauges."""
        until = int(now - self.tier.kept_seconds) // self.tier.cell_seconds * self.tier.cell_seconds
        if until <= self.dropped_until:
            return
        self.dropped_until = until
        for cell in [cell for cell in self.cells if cell < until]:
            for key, figures in self.cells.pop(cell).items():
                add_change(self.before, key, figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The figures of one cell by key; `start` is in seconds."""

    start: int
    figures: dict[Key, Figures]


@dataclass(slots=True)
class FigureHistory:
    """Figures in tiers of cells. Each tier has every figure, as far back as it goes, so that nothing has to be moved.

    The figures of a range of time are therefore the same in every process that has read the same events.
    The open cell is put into the tiers when another one begins or when the history is read.

    `tiers` are from fine to coarse, each cell a whole number of those before. `untold` has the figures since the last
    `take_new`.
    """

    tiers: list[TierCells] = field(default_factory=lambda: [TierCells(tier=tier) for tier in TIERS])
    open: dict[Key, Figures] = field(default_factory=dict[Key, Figures])
    open_at: int = 0
    now: float = 0.0
    untold: dict[Key, Figures] = field(default_factory=dict[Key, Figures])

    @property
    def reach(self) -> int:
        """How many seconds the history goes back."""
        return self.tiers[-1].tier.kept_seconds

    def add(self, at: float, key: Key, figures: Figures, *, now: float) -> None:
        """Count figures of an event `at` a time (seconds since 1970)."""
        seconds = self.tiers[0].tier.cell_seconds
        if (cell := int(at) // seconds * seconds) != self.open_at:
            self._settle()
            self.open_at = cell
        self.now = now
        _merge_at(self.open, key, figures)

    def take_new(self) -> dict[Key, Figures]:
        """Everything that was counted since the last call."""
        self._settle()
        changes, self.untold = self.untold, {}
        return changes

    def tier(self, start: float, now: float) -> Tier:
        """The finest tier that goes back to `start`; the coarsest where none does."""
        tiers = (tier_cells.tier for tier_cells in self.tiers if now - start <= tier_cells.tier.kept_seconds)
        return next(tiers, self.tiers[-1].tier)

    def first(self) -> int | None:
        """The start of the oldest cell of all; None where nothing was counted."""
        self._settle()
        return min(self.tiers[-1].cells, default=None)

    def cells(self, tier: Tier, start: int, end: int) -> list[Cell]:
        """The cells of a tier that begin in a range, oldest first."""
        cells = self._tier(tier).cells
        return [Cell(start=at, figures=cells[at]) for at in sorted(cells) if start <= at < end]

    def before(self, tier: Tier, start: int) -> dict[Key, Gauges]:
        """The gauges of each key at a cell's start."""
        tier_cells = self._tier(tier)
        gauges: dict[Key, Gauges] = {}
        for key, initial in tier_cells.before.items():
            gauges.setdefault(key, Gauges()).merge(initial)
        for at, cell in tier_cells.cells.items():
            if at < start:
                for key, figures in cell.items():
                    add_change(gauges, key, figures)
        return gauges

    def _settle(self) -> None:
        """Put the open cell into the tiers."""
        for tier_cells in self.tiers if self.open else ():
            tier_cells.drop(self.now)
            for key, figures in self.open.items():
                tier_cells.add(self.open_at, key, figures)
        for key, figures in self.open.items():
            _merge_at(self.untold, key, figures)
        self.open = {}

    def _tier(self, tier: Tier) -> TierCells:
        self._settle()
        return next(tier_cells for tier_cells in self.tiers if tier_cells.tier == tier)
