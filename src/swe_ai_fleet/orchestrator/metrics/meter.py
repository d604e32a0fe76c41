"""The figures of the whole fleet, kept up from the log and measured over a range of time.

Each tenant's tokens are counted for the present day.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import structlog

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, Unavailable
from swe_ai_fleet.domain.event import StoredEvent
from swe_ai_fleet.following import PAUSES, Follower
from swe_ai_fleet.orchestrator.metrics import figures, fold
from swe_ai_fleet.orchestrator.metrics.figures import Cell, Figures, Gauges, History, Key, Saved, Tier
from swe_ai_fleet.orchestrator.metrics.fold import MetricsFold, Names, SavedFold
from swe_ai_fleet.snapshots import Snapshots

DAY_SECONDS = 86_400
MOST_TENANTS = 50
POINTS = 120
"""So many a series has at most where nobody asked for a step."""
_STEPS = (60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
_SLICE = 32
_log = structlog.get_logger(__name__)
_HINT = "restart the orchestrator"


class DayTokens:
    """Adds up tokens by tenant and day (UTC); of each tenant the last day that it spent any on is kept."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, int]] = {}

    def add(self, tenant: str, at: float, tokens: int) -> None:
        """Count tokens that were spent at a time, in seconds since 1970."""
        if not tokens:
            return
        day = int(at // DAY_SECONDS)
        last, spent = self.last.get(tenant, (day, 0))
        if day >= last:
            self.last[tenant] = (day, tokens + (spent if day == last else 0))

    def of(self, tenant: str, now: float) -> int:
        """The tokens of a tenant on the day of a time, in seconds since 1970."""
        day, spent = self.last.get(tenant, (0, 0))
        return spent if day == int(now // DAY_SECONDS) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step of a series: what was counted in it, and how the gauges stood at its end. `start` is in seconds."""

    start: int
    figures: Figures
    gauges: Gauges


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a range of time had; `start` and `end` are in seconds, the latter exclusive. `now` are today's gauges.

    `incomplete` says that the log has not been read to its end yet.
    """

    start: int
    end: int
    step: int
    total: Figures
    series: tuple[Point, ...]
    now: Gauges
    incomplete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """What a meter holds beside its history."""

    gauges: list[tuple[Key, Gauges]] = field(default_factory=list[Any])
    tenants: dict[str, str] = field(default_factory=dict[str, str])
    totals: dict[str, Figures] = field(default_factory=dict[str, Figures])
    days: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    fold: SavedFold = field(default_factory=SavedFold)


class Meter:
    """Measures what a log tells. An async context: inside, the log is read in the background, then followed.

    Memory is bounded by the tiers of its history, whatever the log holds.

    Args:
        events: All events from a sequence number on, without an end; None once everything older is told.
        history: Where figures are kept.
        clock: Seconds since 1970.
        snapshots: Where the figures are saved; None: the log is read from its start.
    """

    def __init__(
        self,
        events: Callable[[int], AsyncGenerator[StoredEvent | None, None]],
        *,
        history: History | None = None,
        clock: Callable[[], float] = time.time,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._history = history or History()
        self._clock = clock
        self._fold = MetricsFold()
        self._gauges: dict[Key, Gauges] = {}
        self._tenants = Names(MOST_TENANTS)
        self._totals: dict[str, Figures] = {}
        self._days = DayTokens()
        self._read = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._follower = Follower(
            "the log of events",
            lambda start: _in_slices(events(start)),
            self.take,
            hint=_HINT,
            snapshot=snapshots
            and snapshots.of(
                "metrics", sys.modules[__name__], fold, figures, dump=self._dump, load=self._load, still=True
            ),
        )

    async def __aenter__(self) -> Meter:
        self._task = asyncio.create_task(self._begin(), name="metrics")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._follower.stop()

    def take(self, stored: StoredEvent) -> int:
        """Count an event; its position."""
        now = self._clock()
        for counted in self._fold.take(stored):
            # A clock that is ahead must not put anything where nobody looks.
            at = min(counted.at, now)
            self._history.add(at, counted.key, counted.figures, now=now)
            self._totals.setdefault(self._tenants.of(counted.key[0]), Figures()).merge(counted.figures)
            self._days.add(counted.key[0], at, counted.figures.usage.total_tokens)
            if counted.figures.change.any():
                self._gauges.setdefault(counted.key, Gauges()).merge(counted.figures.change)
        return stored.sequence

    def running(self, tenant: str, execution_id: str) -> Usage:
        """What an execution that has not ended has spent so far; nothing where none is known."""
        return self._fold.running(tenant, execution_id)

    def totals(self) -> Mapping[str, Figures]:
        """By tenant, everything that the log told; how the gauges stand is the sum of their changes.

        Tenants beyond the first 50 share a name. Not to be changed.
        """
        return self._totals

    @property
    def complete(self) -> bool:
        """Whether everything that stood in the log at the start is counted."""
        return self._read.is_set()

    async def whole(self) -> None:
        """Wait until everything that stood in the log at the start is counted."""
        await self._read.wait()

    async def spent_today(self, tenant: str, *, timeout: float = 5.0) -> int:
        """The prompt and completion tokens of a tenant's executions since midnight UTC.

        Raises Unavailable where the log is not read to its end within so many seconds, or not followed.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.whole()
        except TimeoutError:
            raise Unavailable("today's spending is still being counted", hint="try again in a moment") from None
        self._follower.check()
        return self._days.of(tenant, self._clock())

    async def measure(
        self, tenant: str, *, start: float = 0.0, end: float = 0.0, role: str = "", step: int = 0
    ) -> Measurement:
        """What happened in a range of time.

        Args:
            tenant: Whose executions.
            start: In seconds since 1970; 0: as far back as the log goes.
            end: Likewise, exclusive; 0: now.
            role: Of the executions; empty: all.
            step: Seconds between two points; 0: chosen, for at most 120 points.

        Returns:
            The range is widened to whole steps, the step to whole cells of what is kept of so long ago.

        Raises:
            InvalidRequest: The range is empty.
            Unavailable: The log is not followed at the moment.
        """
        incomplete = not self._read.is_set()
        if not incomplete:
            self._follower.check()
        now = self._clock()
        until = min(end or now, now)
        since = max(start or self._history.first() or until, now - self._history.reach)
        if start and since >= until:
            field = "end_time_ms" if end and end <= start else "start_time_ms"
            raise InvalidRequest("the range of time is empty", field=field, hint="an earlier start, or a later end")
        tier, step = self._grid(step, since, until, now)
        # The present second is in the range, that of an end which was named is not.
        after = math.ceil(until) if until == end else int(until) + 1
        first, last = int(since) // step * step, -(-after // step) * step
        if last <= first:
            last = first + step

        def wanted(key: Key) -> bool:
            return key[0] == tenant and (not role or key[1] == role)

        gauges = Gauges()
        for key, was in self._history.before(tier, first).items():
            if wanted(key):
                gauges.merge(was)
        cells = self._history.cells(tier, first, last)
        total, series = await _points(cells, first, last, step, gauges, wanted)
        today = Gauges()
        for key, is_now in self._gauges.items():
            if wanted(key):
                today.merge(is_now)
        return Measurement(
            start=first, end=last, step=step, total=total, series=series, now=today, incomplete=incomplete
        )

    def _dump(self) -> Iterator[bytes]:
        saved = _Saved(
            gauges=list(self._gauges.items()),
            tenants=self._tenants.known,
            totals=self._totals,
            days=self._days.last,
            fold=self._fold.saved(),
        )
        return map(to_json, chain([saved], self._history.dump()))

    def _load(self, lines: Iterator[bytes]) -> None:
        saved = from_json(_Saved, next(lines, b"{}"))
        self._gauges, self._tenants.known, self._totals = dict(saved.gauges), saved.tenants, saved.totals
        self._days.last = saved.days
        self._fold.restore(saved.fold)
        self._history.load(from_json(Saved, line) for line in lines)

    def _grid(self, asked: int, since: float, until: float, now: float) -> tuple[Tier, int]:
        """The finest tier that has the whole range once it is widened to whole steps, and the step."""
        tier = self._history.tier(since, now)
        while True:
            step = _step(asked, until - since, tier)
            reaching = self._history.tier(int(since) // step * step, now)
            if reaching.cell_seconds <= tier.cell_seconds:
                return tier, step
            tier = reaching

    async def _begin(self) -> None:
        """Read what is stored, however often the log does not answer."""
        failures = 0
        while True:
            try:
                await self._follower.start()
            except FleetError as error:
                _log.warning("metrics.log_unavailable", reason=error.message)
                await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1
            else:
                self._read.set()
                return


async def _points(
    cells: list[Cell], first: int, last: int, step: int, gauges: Gauges, wanted: Callable[[Key], bool]
) -> tuple[Figures, tuple[Point, ...]]:
    """The sum of all, and of each step; others get their turn in between."""
    total, series = Figures(), list[Point]()
    steps = {at: list(group) for at, group in groupby(cells, key=lambda cell: cell.start // step * step)}
    for number, at in enumerate(range(first, last, step)):
        figures = Figures()
        for cell in steps.get(at, ()):
            for key, found in cell.figures.items():
                if wanted(key):
                    figures.merge(found)
            await asyncio.sleep(0)
        total.merge(figures)
        gauges.merge(figures.change)
        stands = Gauges(agents=max(0, gauges.agents), driven=max(0, gauges.driven), queued=max(0, gauges.queued))
        series.append(Point(start=at, figures=figures, gauges=stands))
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    return total, tuple(series)


def _step(asked: int, seconds: float, tier: Tier) -> int:
    """The step to take: a whole number of cells."""
    cell = tier.cell_seconds
    if not asked:
        return next((step for step in _STEPS if step >= cell and seconds / step <= POINTS - 2), _STEPS[-1])
    return -(-asked // cell) * cell


async def _in_slices(events: AsyncGenerator[StoredEvent | None, None]) -> AsyncGenerator[StoredEvent | None, None]:
    """The same, but a long log does not hold the loop up while it is read."""
    number = 0
    async with aclosing(events):
        async for stored in events:
            yield stored
            number += 1
            if number % _SLICE == 0:
                await asyncio.sleep(0)
