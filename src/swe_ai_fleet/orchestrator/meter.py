"""The figures of the whole fleet, updated from the log and measured over a range of time.

Each tenant's tokens are counted for the current day.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest, Unavailable
from swe_ai_fleet.domain.event import StoredEvent
from swe_ai_fleet.following import Follower
from swe_ai_fleet.orchestrator import figures, metrics_fold
from swe_ai_fleet.orchestrator.figures import Cell, FigureHistory, Figures, Gauges, Key, Tier, add_change
from swe_ai_fleet.orchestrator.metrics_fold import MetricNames, MetricsFold
from swe_ai_fleet.snapshots import Snapshots

DAY_SECONDS = 86_400
MOST_TENANTS = 50
POINTS = 120
"""The most points of a series without a requested step."""
_STEPS = (60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
_SLICE = 32
_HINT = "restart the orchestrator"


@dataclass(slots=True)
class DayTokens:
    """Sums of tokens by tenant, each for the last day (UTC) on which the tenant spent any."""

    last: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

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
    """One step of a series: its figures, and the gauges at its end. `start` is in seconds."""

    start: int
    figures: Figures
    gauges: Gauges


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures of a range of time; `start` and `end` are in seconds, `end` exclusive. `now` has the current gauges.

    `incomplete`: the log has not been read to its end yet.
    """

    start: int
    end: int
    step: int
    total: Figures
    series: tuple[Point, ...]
    now: Gauges
    incomplete: bool


@dataclass(slots=True, kw_only=True)
class _State:
    """The state of a meter, as snapshots store it."""

    history: FigureHistory = field(default_factory=FigureHistory)
    gauges: dict[Key, Gauges] = field(default_factory=dict[Key, Gauges])
    tenants: MetricNames = field(default_factory=lambda: MetricNames(MOST_TENANTS))
    totals: dict[str, Figures] = field(default_factory=dict[str, Figures])
    days: DayTokens = field(default_factory=DayTokens)
    fold: MetricsFold = field(default_factory=MetricsFold)


class Meter:
    """Measures the events of a log. An async context: inside, the log is read in the background, then followed.

    Memory is bounded by the tiers of its history, however long the log is.

    Args:
        events: All events from a sequence number on, without an end; None once all stored events were yielded.
        clock: Seconds since 1970.
        snapshots: Where the figures are saved; None: the log is read from its start.
    """

    def __init__(
        self,
        events: Callable[[int], AsyncGenerator[StoredEvent | None, None]],
        *,
        clock: Callable[[], float] = time.time,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._clock = clock
        self._state = _State()
        self._follower = Follower(
            "the log of events",
            events,
            self.take,
            hint=_HINT,
            snapshot=None
            if snapshots is None
            else snapshots.of(
                "metrics",
                sys.modules[__name__],
                metrics_fold,
                figures,
                dump=lambda: [to_json(self._state)],
                load=self._load,
            ),
        )

    async def __aenter__(self) -> Meter:
        self._follower.begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._follower.stop()

    def take(self, stored: StoredEvent) -> int:
        """Count an event; its position."""
        now = self._clock()
        for counted in self._state.fold.take(stored):
            # An event from a clock that is ahead counts as of now.
            at = min(counted.at, now)
            self._state.history.add(at, counted.key, counted.figures, now=now)
            self._state.days.add(stored.event.tenant, at, counted.figures.usage.total_tokens)
            add_change(self._state.gauges, counted.key, counted.figures)
        return stored.sequence

    def running(self, tenant: str, execution_id: str) -> Usage:
        """What an execution that has not ended has spent so far; nothing where none is known."""
        return self._state.fold.running(tenant, execution_id)

    def totals(self) -> Mapping[str, Figures]:
        """All figures of the log by tenant, not to be changed; a gauge is the sum of its changes.

        Tenants beyond the first 50 share a name.
        """
        for key, counted in self._state.history.take_new().items():
            tenant = self._state.tenants.of(key.partition("/")[0])
            self._state.totals.setdefault(tenant, Figures()).merge(counted)
        return self._state.totals

    @property
    def complete(self) -> bool:
        """Whether everything that was in the log at the start is counted."""
        return self._follower.caught_up

    async def whole(self) -> None:
        """Wait until everything that was in the log at the start is counted."""
        await self._follower.wait_caught_up()

    async def spent_today(self, tenant: str, *, timeout: float = 5.0) -> int:
        """The prompt and completion tokens of a tenant's executions since midnight UTC.

        Raises Unavailable where the log is not read to its end within `timeout` seconds, or not followed.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.whole()
        except TimeoutError:
            raise Unavailable("today's spending is still being counted", hint="try again in a moment") from None
        self._follower.check()
        return self._state.days.of(tenant, self._clock())

    async def measure(
        self, tenant: str, *, start: float = 0.0, end: float = 0.0, role: str = "", step: int = 0
    ) -> Measurement:
        """The figures of a range of time.

        Args:
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
        incomplete = not self.complete
        if not incomplete:
            self._follower.check()
        now = self._clock()
        until = min(end or now, now)
        since = max(start or self._state.history.first() or until, now - self._state.history.reach)
        if start and since >= until:
            field = "end_time_ms" if end and end <= start else "start_time_ms"
            raise InvalidRequest("the range of time is empty", field=field, hint="an earlier start, or a later end")
        tier, step = self._grid(step, since, until, now)
        # The current second is in the range, the second of a given end is not.
        after = math.ceil(until) if until == end else int(until) + 1
        first, last = int(since) // step * step, -(-after // step) * step
        if last <= first:
            last = first + step

        def matches(key: Key) -> bool:
            return key == f"{tenant}/{role}" if role else key.startswith(f"{tenant}/")

        gauges = Gauges()
        for key, initial in self._state.history.before(tier, first).items():
            if matches(key):
                gauges.merge(initial)
        cells = self._state.history.cells(tier, first, last)
        total, series = await _points(cells, first, last, step, gauges, matches)
        current = Gauges()
        for key, own in self._state.gauges.items():
            if matches(key):
                current.merge(own)
        return Measurement(
            start=first, end=last, step=step, total=total, series=series, now=current, incomplete=incomplete
        )

    def _load(self, lines: Iterator[bytes]) -> None:
        self._state = from_json(_State, next(lines, b"{}"))

    def _grid(self, requested: int, since: float, until: float, now: float) -> tuple[Tier, int]:
        """The finest tier that has the whole range once it is widened to whole steps, and the step."""
        tier = self._state.history.tier(since, now)
        while True:
            step = _step(requested, until - since, tier)
            reaching = self._state.history.tier(int(since) // step * step, now)
            if reaching.cell_seconds <= tier.cell_seconds:
                return tier, step
            tier = reaching


async def _points(
    cells: list[Cell], first: int, last: int, step: int, gauges: Gauges, matches: Callable[[Key], bool]
) -> tuple[Figures, tuple[Point, ...]]:
    """The sum of all cells, and of each step; the event loop gets its turn in between."""
    total, series = Figures(), list[Point]()
    steps = {at: list(group) for at, group in groupby(cells, key=lambda cell: cell.start // step * step)}
    for number, at in enumerate(range(first, last, step)):
        figures = Figures()
        for cell in steps.get(at, ()):
            for key, change in cell.figures.items():
                if matches(key):
                    figures.merge(change)
            await asyncio.sleep(0)
        total.merge(figures)
        gauges.merge(figures.change)
        at_end = Gauges(agents=max(0, gauges.agents), driven=max(0, gauges.driven), queued=max(0, gauges.queued))
        series.append(Point(start=at, figures=figures, gauges=at_end))
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    return total, tuple(series)


def _step(requested: int, seconds: float, tier: Tier) -> int:
    """The step to take: a whole number of cells."""
    cell = tier.cell_seconds
    if not requested:
        return next((step for step in _STEPS if step >= cell and seconds / step <= POINTS - 2), _STEPS[-1])
    return -(-requested // cell) * cell
