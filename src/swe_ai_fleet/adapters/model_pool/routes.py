"""Where a call can go at one moment."""

from __future__ import annotations

import random
from collections.abc import Sequence

from swe_ai_fleet.adapters.model_pool.endpoint import Binding, Endpoint

_LOADED_MARGIN = 8
_COLD_MARGIN = 2


class Routes:
    """Where calls can go at one moment: where their run is bound to while that serves, else where there is least to do.

    A run leaves its endpoint where that has no room, or says that requests wait there, and another one is much less
    busy; one whose prompt is no longer in the cache there has less to lose.
    """

    def __init__(self, endpoints: Sequence[Endpoint], now: float, *, stale_after: float) -> None:
        self.ready = [endpoint for endpoint in endpoints if endpoint.admits(now)]
        self._now, self._stale_after = now, stale_after
        self._alone = len(endpoints) == 1
        self._ranked: list[tuple[tuple[bool, float, float], Endpoint]] = []
        if self.ready and not self._alone:
            ranked = [(self._pressure(endpoint), random.random(), endpoint) for endpoint in self.ready]  # noqa: S311
            self._ranked = [(pressure, endpoint) for pressure, _, endpoint in sorted(ranked, key=lambda rank: rank[:2])]
        self._known: dict[tuple[Endpoint, bool], Endpoint | None] = {}

    def of(self, session: Binding | None, avoid: Endpoint | None) -> Endpoint | None:
        """Where a call of a run can go now, best not to the endpoint to avoid; None where it is to wait."""
        if self._alone or not self.ready:
            return self.ready[0] if self.ready else None
        best = next((endpoint for _, endpoint in self._ranked if endpoint is not avoid), self._ranked[0][1])
        if session is None or session.endpoint is None:
            return best
        bound = session.endpoint
        if bound is avoid:
            return best
        key = bound, session.is_cold
        if key not in self._known:
            self._known[key] = self._from(bound, is_cold=session.is_cold)
        return self._known[key]

    def _from(self, bound: Endpoint, *, is_cold: bool) -> Endpoint | None:
        (best_full, least, _), best = self._ranked[0]
        if bound is best or not bound.up(self._now):
            return best
        is_ready = bound in self.ready
        if not is_ready or bound.queues(self._now, stale_after=self._stale_after):
            full, pressure, _ = self._pressure(bound)
            limit = least + _COLD_MARGIN if is_cold else 2 * least + _LOADED_MARGIN
            if (full and not best_full) or pressure > limit:
                return best
        return bound if is_ready else None

    def _pressure(self, endpoint: Endpoint) -> tuple[bool, float, float]:
        return endpoint.pressure(self._now, stale_after=self._stale_after)
