"""How much is remembered, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import Memory

_SLACK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Most memories of one namespace, and their greatest age in days (0: any). Beyond either the oldest are forgotten.

    Raises InvalidRequest for limits that nothing fits.
    """

    per_namespace: int = 20_000
    max_age_days: float = 0.0

    def __post_init__(self) -> None:
        if self.per_namespace < 1:
            raise InvalidRequest(f"memory_limit is {self.per_namespace}", field="memory_limit", hint="at least 1")
        if self.max_age_days < 0:
            raise InvalidRequest(f"memory_age_days is {self.max_age_days}", field="memory_age_days", hint="at least 0")

    @property
    def interval(self) -> int:
        """After so many new memories of a namespace it is looked at again: by 1 in a hundred it may grow too large."""
        return max(1, self.per_namespace // _SLACK)

    def too_old(self, memory: Memory, now: datetime) -> bool:
        """Whether a memory is older than memories may be."""
        return bool(self.max_age_days) and memory.created_at < moment(now - timedelta(days=self.max_age_days))


def moment(time: datetime) -> str:
    """A time as memories write it, so that texts sort as times do: UTC, ISO 8601, milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds")
