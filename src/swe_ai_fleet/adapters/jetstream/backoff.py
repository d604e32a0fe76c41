"""Waiting between tries to reach NATS."""

from __future__ import annotations

import asyncio
import random

from swe_ai_fleet.domain.errors import Unavailable

FIRST_SECONDS = 0.05
LAST_SECONDS = 2.0


class Backoff:
    """Waits that double up to a cap, with jitter, until a deadline (None = for ever)."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._delay = FIRST_SECONDS

    @classmethod
    def lasting(cls, seconds: float | None) -> Backoff:
        return cls(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    @property
    def remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def wait(self, reason: object) -> None:
        """Wait before another try. Raises Unavailable with the reason once the time is up."""
        remaining = self.remaining
        if remaining is not None and remaining <= 0:
            raise Unavailable(f"NATS does not answer: {reason}", hint="is the server running and reachable?")
        delay = random.uniform(0.5, 1.0) * self._delay  # noqa: S311 (jitter, not a secret)
        self._delay = min(2 * self._delay, LAST_SECONDS)
        await asyncio.sleep(delay if remaining is None else min(delay, remaining))
