"""The circuit breaker of one endpoint."""

from __future__ import annotations

import random
from enum import StrEnum


class Circuit(StrEnum):
    """Closed: calls go through. Open: none does. Half-open: it answered a ping; calls go through until one fails."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Stops calls to an endpoint that fails, after M. Nygard, "Release It!".

    Each time it opens again without a success in between it stays open twice as long. Faults and successes carry the
    `epoch` in which their call began: what began before the circuit last opened says nothing new.

    Args:
        threshold: faults in a row that open a closed circuit; one does where it is half-open.
        open_seconds: how long it stays open the first time.
        longest_seconds: the longest it stays open.
    """

    def __init__(self, *, threshold: int = 3, open_seconds: float = 1.0, longest_seconds: float = 30.0) -> None:
        self._threshold = threshold
        self._open_seconds = open_seconds
        self._longest_seconds = longest_seconds
        self._faults = 0
        self._openings = 0
        self.circuit = Circuit.CLOSED
        self.epoch = 0
        self.retry_at = 0.0
        """When an open circuit is due for a ping."""

    def succeeded(self, epoch: int) -> bool:
        """A call was answered; whether that closed the circuit."""
        if epoch != self.epoch or self.circuit is Circuit.OPEN:
            return False
        closed = self.circuit is Circuit.HALF_OPEN
        self.circuit = Circuit.CLOSED
        self._faults = self._openings = 0
        return closed

    def failed(self, epoch: int, now: float) -> bool:
        """A call failed; whether that opened the circuit."""
        if epoch != self.epoch or self.circuit is Circuit.OPEN:
            return False
        self._faults += 1
        if self.circuit is Circuit.CLOSED and self._faults < self._threshold:
            return False
        self.epoch += 1
        self._open(now)
        return True

    def ping_failed(self, now: float) -> None:
        """The endpoint of an open circuit is still away."""
        self._open(now)

    def ping_answered(self) -> None:
        """The endpoint of an open circuit is back, as far as a ping can tell."""
        self.circuit = Circuit.HALF_OPEN

    def _open(self, now: float) -> None:
        self.circuit = Circuit.OPEN
        self._faults = 0
        seconds = min(self._longest_seconds, self._open_seconds * 2.0 ** min(self._openings, 30))
        self._openings += 1
        # With jitter, so that the processes of a fleet do not ping in step.
        self.retry_at = now + seconds * random.uniform(0.5, 1.0)  # noqa: S311
