"""What each tenant spent on the present day."""

from __future__ import annotations

DAY_SECONDS = 86_400


class DayTokens:
    """Adds up tokens by tenant and day (UTC); of each tenant the last day that it spent any on is kept."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def add(self, tenant: str, at: float, tokens: int) -> None:
        """Count tokens that were spent at a time, in seconds since 1970."""
        if not tokens:
            return
        day = int(at // DAY_SECONDS)
        last, spent = self._last.get(tenant, (day, 0))
        if day >= last:
            self._last[tenant] = (day, tokens + (spent if day == last else 0))

    def of(self, tenant: str, now: float) -> int:
        """The tokens of a tenant on the day of a time, in seconds since 1970."""
        day, spent = self._last.get(tenant, (0, 0))
        return spent if day == int(now // DAY_SECONDS) else 0
