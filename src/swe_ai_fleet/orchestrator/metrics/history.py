"""Figures kept by time: finely for what is recent, coarsely for what is old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swe_ai_fleet.orchestrator.metrics.figures import Figures, Gauges

Key = tuple[str, str]
"""A tenant, and the role of an execution; no role where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Cells of so many seconds, each kept for so many."""

    cell_seconds: int
    kept_seconds: int


_HOUR, _DAY = 3_600, 86_400
TIERS = (
    Tier(cell_seconds=60, kept_seconds=6 * _HOUR),
    Tier(cell_seconds=600, kept_seconds=3 * _DAY),
    Tier(cell_seconds=_HOUR, kept_seconds=14 * _DAY),
    Tier(cell_seconds=_DAY, kept_seconds=92 * _DAY),
)
"""From fine to coarse; each cell is a whole number of those of the tier before. The last goes as far as the log."""


@dataclass(slots=True, kw_only=True)
class _Shelf:
    """The cells of one tier by their start in seconds, and what the gauges were before the first of them."""

    tier: Tier
    cells: dict[int, dict[Key, Figures]] = field(default_factory=dict[int, dict[Key, Figures]])
    before: dict[Key, Gauges] = field(default_factory=dict[Key, Gauges])
    dropped_until: int = 0

    def add(self, at: float, key: Key, figures: Figures) -> None:
        cell = int(at) // self.tier.cell_seconds * self.tier.cell_seconds
        if cell < self.dropped_until:
            if figures.change.any():
                self.before.setdefault(key, Gauges()).merge(figures.change)
            return
        cells = self.cells.setdefault(cell, {})
        if key not in cells:
            cells[key] = Figures()
        cells[key].merge(figures)

    def drop(self, now: float) -> None:
        """Forget what is too old, its effect on the gauges aside."""
        until = int(now - self.tier.kept_seconds) // self.tier.cell_seconds * self.tier.cell_seconds
        if until <= self.dropped_until:
            return
        self.dropped_until = until
        for cell in [cell for cell in self.cells if cell < until]:
            for key, figures in self.cells.pop(cell).items():
                if figures.change.any():
                    self.before.setdefault(key, Gauges()).merge(figures.change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What was counted from a moment on, in seconds, by key."""

    start: int
    figures: dict[Key, Figures]


class History:
    """Every figure stands in each tier that reaches as far back, so that nothing has to be moved when it gets old.

    What a range of time has is therefore the same in every process that has read the same events, whenever it did.

    Args:
        tiers: From fine to coarse.
    """

    def __init__(self, tiers: Sequence[Tier] = TIERS) -> None:
        self._shelves = tuple(_Shelf(tier=tier) for tier in tiers)

    @property
    def reach(self) -> int:
        """How far back it goes, in seconds."""
        return self._shelves[-1].tier.kept_seconds

    def add(self, at: float, key: Key, figures: Figures, *, now: float) -> None:
        """Count something that happened `at` (seconds since 1970)."""
        for shelf in self._shelves:
            shelf.drop(now)
            shelf.add(at, key, figures)

    def tier(self, start: float, now: float) -> Tier:
        """The finest tier that goes as far back; the coarsest where none does."""
        found = (shelf.tier for shelf in self._shelves if now - start <= shelf.tier.kept_seconds)
        return next(found, self._shelves[-1].tier)

    def first(self) -> int | None:
        """The start of the oldest cell of all; None where nothing was counted."""
        return min(self._shelves[-1].cells, default=None)

    def cells(self, tier: Tier, start: int, end: int) -> list[Cell]:
        """The cells of a tier that begin in a range, oldest first."""
        found = self._shelf(tier).cells
        return [Cell(start=at, figures=found[at]) for at in sorted(found) if start <= at < end]

    def before(self, tier: Tier, start: int) -> dict[Key, Gauges]:
        """What the gauges of each key were at a cell's start."""
        shelf = self._shelf(tier)
        found: dict[Key, Gauges] = {}
        for key, was in shelf.before.items():
            found.setdefault(key, Gauges()).merge(was)
        for at, cell in shelf.cells.items():
            if at < start:
                for key, figures in cell.items():
                    if figures.change.any():
                        found.setdefault(key, Gauges()).merge(figures.change)
        return found

    def _shelf(self, tier: Tier) -> _Shelf:
        return next(shelf for shelf in self._shelves if shelf.tier == tier)
