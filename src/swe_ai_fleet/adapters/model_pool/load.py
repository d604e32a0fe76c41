"""How many calls a server can take: its reported load (vLLM's metrics), a circuit breaker, a window of calls."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from swe_ai_fleet.domain.json_values import number_in

_RUNNING = b"vllm:num_requests_running"
_WAITING = b"vllm:num_requests_waiting"
# The second name is the one that servers before 0.10 use.
_CACHE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
_PREFIX_HITS = (b"vllm:prefix_cache_hits_total", b"vllm:gpu_prefix_cache_hits_total")
_PREFIX_QUERIES = (b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total")
_WIDEST_WINDOW = 1024.0
_WINDOW_GROWTH = 0.05
_ROOM_GROWTH = 0.25
_FEW = 2
_THRESHOLD = 3
"""How many faults in a row open a closed circuit; a half-open one opens at the first."""
_CACHE_IN_USE = 0.6
_HIT_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """A server's running and waiting requests, and the fraction of its KV cache in use (0 to 1).

    `prefix_queries` are the tokens looked up in its prefix cache since its start, `prefix_hits` those found there.
    """

    running: int
    waiting: int
    cache: float = 0.0
    prefix_hits: float = 0.0
    prefix_queries: float = 0.0


def read_load(metrics: bytes) -> ServerLoad | None:
    """The load in a page of Prometheus text; None without vLLM's metrics.

    A server with several engines has a line for each: requests are added up, and the fullest cache counts.
    """
    running = waiting = cache = hits = queries = 0.0
    any_found = False
    for line in metrics.splitlines():
        if not line.startswith(b"vllm:"):
            continue
        name, value = _sample(line)
        if name == _RUNNING:
            running, any_found = running + value, True
        elif name == _WAITING:
            waiting += value
        elif name in _CACHE:
            cache = max(cache, min(value, 1.0))
        elif name in _PREFIX_HITS:
            hits += value
        elif name in _PREFIX_QUERIES:
            queries += value
    if not any_found:
        return None
    return ServerLoad(
        running=round(running), waiting=round(waiting), cache=cache, prefix_hits=hits, prefix_queries=queries
    )


async def vllm_load(page: Callable[[], Awaitable[bytes]]) -> ServerLoad | None:
    """The load in a vLLM server's page of metrics; None without it."""
    return read_load(await page())


def _sample(line: bytes) -> tuple[bytes, float]:
    # Labels may hold spaces and braces; a time stamp may follow the value.
    name, _, rest = line.partition(b"{")
    if rest:
        rest = rest.rpartition(b"}")[2]
    else:
        name, _, rest = line.partition(b" ")
    words = rest.split(maxsplit=1)
    return name.strip(), (number_in(words[0], 0, 1e15) or 0.0) if words else 0.0


class Circuit(StrEnum):
    """Closed: calls are allowed. Open: none is. Half-open: it answered a ping; calls are allowed until one fails."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Stops calls to a failing endpoint, after M. Nygard, "Release It!".

    Without a success in between, each opening lasts twice as long. Faults and successes carry the `epoch` in which
    their call began: those of calls that began before the last opening are ignored.
    """

    def __init__(self, *, open_seconds: float, longest_seconds: float) -> None:
        self._open_seconds = open_seconds
        self._longest_seconds = longest_seconds
        self._faults = 0
        self._openings = 0
        self.circuit = Circuit.CLOSED
        self.epoch = 0
        self.retry_at = 0.0
        """The time of the next ping of an open circuit."""

    def succeeded(self, epoch: int) -> bool:
        """Note an answered call; returns whether that closed the circuit."""
        if epoch != self.epoch or self.circuit is Circuit.OPEN:
            return False
        closed = self.circuit is Circuit.HALF_OPEN
        self.circuit = Circuit.CLOSED
        self._faults = self._openings = 0
        return closed

    def failed(self, epoch: int, now: float) -> bool:
        """Note a failed call; returns whether that opened the circuit."""
        if epoch != self.epoch or self.circuit is Circuit.OPEN:
            return False
        self._faults += 1
        if self.circuit is Circuit.CLOSED and self._faults < _THRESHOLD:
            return False
        self.epoch += 1
        self._open(now)
        return True

    def ping_failed(self, now: float) -> None:
        """Keep the circuit open after a failed ping."""
        self._open(now)

    def ping_answered(self) -> None:
        """Half-open the circuit after an answered ping."""
        self.circuit = Circuit.HALF_OPEN

    def _open(self, now: float) -> None:
        self.circuit = Circuit.OPEN
        self._faults = 0
        seconds = min(self._longest_seconds, self._open_seconds * 2.0 ** min(self._openings, 30))
        self._openings += 1
        # With jitter, so that the processes of a fleet do not ping in step.
        self.retry_at = now + seconds * random.uniform(0.5, 1.0)  # noqa: S311


class Window:
    """A limit of concurrent calls: none until trouble; then slow start, additive increase, multiplicative decrease.

    The rules are TCP's (V. Jacobson, "Congestion Avoidance and Control", 1988), calls in place of segments. After an
    outage the window is one call; each success adds one, and so does time, as a model's replies may take a minute:
    it doubles every `ramp_seconds`, too. A rejection for overload halves it, once for all calls that were running
    together; from there each round of successes adds 5 %, and at least one.
    """

    def __init__(self, *, ramp_seconds: float) -> None:
        self._ramp_seconds = ramp_seconds
        self._size = math.inf
        self._ramp_from: float | None = None
        self._halved_at = -math.inf

    def limit(self, now: float) -> float:
        """The limit of concurrent calls."""
        if self._ramp_from is None:
            return self._size
        return max(self._size, self._ramped(now))

    def adjust(self, in_flight: int, load: ServerLoad, *, hit_share: float) -> None:
        """Adjust the limit to the server's load, when `in_flight` of its requests were ours.

        Calls that would only wait on the server wait here instead, where they can be ordered, except a few that keep
        the server busy. When fewer prompts are found in its cache, part of the cache is left to sessions whose tools
        are running. Each process gives up the same share of its calls, down to an eighth of the running ones. When none
        waits any more, the limit grows.
        """
        few = max(_FEW, load.running // 8)
        share = math.inf
        if load.waiting > few:
            share = (load.running + few) / (load.running + load.waiting)
        if hit_share < _HIT_SHARE and load.cache > _CACHE_IN_USE:
            share = min(share, _CACHE_IN_USE / load.cache)
        if share < math.inf:
            self._size = min(self._size, max(share * in_flight, load.running / 8, 1.0))
            self._ramp_from = None
        elif not load.waiting and self._ramp_from is None and in_flight + 1 > self._size:
            has_room = hit_share >= _HIT_SHARE and load.cache <= _CACHE_IN_USE
            self._size += max(1.0, (_ROOM_GROWTH if has_room else _WINDOW_GROWTH) * self._size)

    def restart(self, now: float) -> None:
        """Restart with one call after an outage."""
        self._size = 1.0
        self._ramp_from = now

    def succeeded(self) -> None:
        """Note an answered call."""
        if self._size == math.inf:
            return
        self._size += 1.0 if self._ramp_from is not None else max(1.0, _WINDOW_GROWTH * self._size) / self._size
        if self._size >= _WIDEST_WINDOW:
            self._size, self._ramp_from = math.inf, None

    def turned_away(self, in_flight: int, began: float, now: float) -> bool:
        """Note a call since `began` that was rejected for overload; returns whether that halved the window."""
        if began < self._halved_at:
            return False
        self._halved_at = now
        self._size = max(1.0, min(self.limit(now), in_flight) / 2)
        self._ramp_from = None
        return True

    def next_growth(self, now: float) -> float:
        """The time at which the limit grows by one call without a success; infinite if it does not."""
        if self._ramp_from is None:
            return math.inf
        target = math.floor(self.limit(now)) + 1
        if target >= _WIDEST_WINDOW:
            return now
        return self._ramp_from + self._ramp_seconds * math.log2(target)

    def _ramped(self, now: float) -> float:
        assert self._ramp_from is not None
        doublings = min((now - self._ramp_from) / self._ramp_seconds, math.log2(_WIDEST_WINDOW))
        return 2.0**doublings


class FaultKind(StrEnum):
    """Why a model is unavailable: no answer, an answer cut off, a fault of the server, or overload."""

    UNREACHABLE = "unreachable"
    CUT = "cut"
    BROKEN = "broken"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failed call. `retry_after` is in seconds, None if the server gave none."""

    kind: FaultKind = FaultKind.UNREACHABLE
    retry_after: float | None = None

    @classmethod
    def of(cls, status: int, retry_after: float | None, reached: bool = False) -> Self:
        """The fault of an HTTP status; 0: no complete answer, though the server may have been `reached`."""
        if not status:
            return cls(kind=FaultKind.CUT if reached else FaultKind.UNREACHABLE)
        # Some providers answer 529 instead of 503.
        if status in (429, 503, 529) or retry_after is not None:
            return cls(kind=FaultKind.OVERLOADED, retry_after=retry_after)
        # Routers answer 502 while the server behind them is down.
        return cls(kind=FaultKind.CUT if status == 502 else FaultKind.BROKEN)
