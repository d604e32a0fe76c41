"""How many calls one endpoint may have under way."""

from __future__ import annotations

import math

_WIDE = 1024.0
_GROWTH = 0.05


class Window:
    """Unbounded until there is trouble; then slow start and additive increase, multiplicative decrease.

    The rules are TCP's (V. Jacobson, "Congestion Avoidance and Control", 1988), calls in place of segments. After an
    outage the window is one call; each success adds one, and as replies of a model may take a minute, so does time:
    it doubles every `ramp_seconds` too. A server that turns calls away for overload halves it, once for all calls
    that were under way together; from there each round of successes adds 5 %, and at least one.
    """

    def __init__(self, *, ramp_seconds: float = 2.0) -> None:
        self._ramp_seconds = ramp_seconds
        self._size = math.inf
        self._ramp_from: float | None = None
        self._halved_at = -math.inf

    def limit(self, now: float) -> float:
        """The most calls that may be under way."""
        if self._ramp_from is None:
            return self._size
        return max(self._size, self._by_time(now))

    def restart(self, now: float) -> None:
        """Begin again with one call: the server was away."""
        self._size = 1.0
        self._ramp_from = now

    def succeeded(self) -> None:
        """A call was answered."""
        if self._size == math.inf:
            return
        self._size += 1.0 if self._ramp_from is not None else max(1.0, _GROWTH * self._size) / self._size
        if self._size >= _WIDE:
            self._size, self._ramp_from = math.inf, None

    def turned_away(self, in_flight: int, began: float, now: float) -> bool:
        """A call that began at `began` was turned away for overload; whether that halved the window."""
        if began < self._halved_at:
            return False
        self._halved_at = now
        self._size = max(1.0, min(self.limit(now), in_flight) / 2)
        self._ramp_from = None
        return True

    def next_growth(self, now: float) -> float:
        """When time alone makes room for one more call; infinite where it does not."""
        if self._ramp_from is None:
            return math.inf
        wanted = math.floor(self.limit(now)) + 1
        if wanted >= _WIDE:
            return now
        return self._ramp_from + self._ramp_seconds * math.log2(wanted)

    def _by_time(self, now: float) -> float:
        assert self._ramp_from is not None
        doublings = min((now - self._ramp_from) / self._ramp_seconds, math.log2(_WIDE))
        return 2.0**doublings
