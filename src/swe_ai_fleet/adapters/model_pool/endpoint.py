"""One endpoint of the pool: its model, its circuit breaker, and how many calls it may have under way."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self
from weakref import WeakSet

from swe_ai_fleet.adapters.model_pool.load import Load, LoadProbe
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ModelUnavailable
from swe_ai_fleet.domain.message import ModelCapabilities
from swe_ai_fleet.ports import ChatModel

_WIDEST_WINDOW = 1024.0
_WINDOW_GROWTH = 0.05
_ROOM_GROWTH = 0.25
_FEW = 2
_CACHE_IN_USE = 0.6
_HIT_SHARE = 0.9
_LONGEST_PAUSE_SECONDS = 300.0
_LONGEST_OWN_PAUSE_SECONDS = 30.0


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

    def adjust(self, in_flight: int, load: Load, *, hit_share: float) -> None:
        """The server says how much runs and waits there while so many of the requests are ours.

        What would only wait there is held back here, where it can be put in order, but for a few that keep the server
        busy. Where prompts are less and less found in its cache, a part of that is left to the sessions whose tools
        run. Each process gives up the same share of what it has there, down to an eighth of what runs. Where none
        waits any more, more are let through.
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
        """Begin again with one call: the server was away."""
        self._size = 1.0
        self._ramp_from = now

    def succeeded(self) -> None:
        """A call was answered."""
        if self._size == math.inf:
            return
        self._size += 1.0 if self._ramp_from is not None else max(1.0, _WINDOW_GROWTH * self._size) / self._size
        if self._size >= _WIDEST_WINDOW:
            self._size, self._ramp_from = math.inf, None

    def turned_away(self, in_flight: int, began: float, now: float) -> bool:
        """A call that began at `began` was rejected for overload; whether that halved the window."""
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
        if wanted >= _WIDEST_WINDOW:
            return now
        return self._ramp_from + self._ramp_seconds * math.log2(wanted)

    def _by_time(self, now: float) -> float:
        assert self._ramp_from is not None
        doublings = min((now - self._ramp_from) / self._ramp_seconds, math.log2(_WIDEST_WINDOW))
        return 2.0**doublings


class FaultKind(StrEnum):
    """What an unavailable model means: nobody answered, the answer was cut off, the server broke, or is overloaded."""

    UNREACHABLE = "unreachable"
    CUT = "cut"
    BROKEN = "broken"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failed call as the pool sees it. `retry_after` is in seconds, None where the server does not say."""

    kind: FaultKind = FaultKind.UNREACHABLE
    retry_after: float | None = None

    @classmethod
    def of(cls, status: int, retry_after: float | None, reached: bool = False) -> Self:
        """The fault behind an HTTP status; 0 where no whole answer came, though the server may have been `reached`."""
        if not status:
            return cls(kind=FaultKind.CUT if reached else FaultKind.UNREACHABLE)
        # 529 is what some providers answer instead of 503.
        if status in (429, 503, 529) or retry_after is not None:
            return cls(kind=FaultKind.OVERLOADED, retry_after=retry_after)
        # 502 is what a router says while the server behind it is away.
        return cls(kind=FaultKind.CUT if status == 502 else FaultKind.BROKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a pool is made of. `name` is shown to operators, so no secret may stand in it.

    The model must not retry on its own. Without `load` the pool goes by what it has under way itself. `close` is called
    once the member has left the pool and its last call has ended, or the pool is closed.
    """

    name: str
    model: ChatModel
    load: LoadProbe | None = None
    close: Callable[[], Awaitable[None]] | None = None


@dataclass(eq=False, slots=True, weakref_slot=True, kw_only=True)
class Binding:
    """An agent run: where its calls go, for as long as somebody holds it, and what service they have had.

    Attributes:
        name: that servers and routers are told; it says nothing of the run.
        started: when it made its first call, by a clock of the whole process.
        attained: tokens that servers computed for it: of prompts what was not in the cache, and replies.
        prompt_tokens: of its last prompt.
        is_cold: less than half of the prompt before was in the cache of a server that has one.
    """

    name: str
    tenant: str = ""
    priority: int = 0
    started: float = 0.0
    attained: int = 0
    prompt_tokens: int = 0
    is_cold: bool = False
    endpoint: Endpoint | None = None

    def served(self, usage: Usage) -> None:
        """A call was answered: what it took of the server counts, and whether its prompt was found in the cache."""
        self.attained += usage.total_tokens - usage.cached_tokens
        if self.endpoint is not None:
            self.endpoint.caches = self.endpoint.caches or usage.cached_tokens > 0
            self.is_cold = self.endpoint.caches and 2 * usage.cached_tokens < self.prompt_tokens
        self.prompt_tokens = usage.prompt_tokens

    def bind(self, endpoint: Endpoint) -> None:
        """Let the next calls go to this endpoint."""
        if self.endpoint is not None:
            self.endpoint.bindings.discard(self)
        self.endpoint = endpoint
        endpoint.bindings.add(self)


@dataclass(eq=False, kw_only=True)
class Endpoint:
    """A member's state in this process. Times are the event loop's.

    `emptied` is there once it has left the pool, and set when its last call has ended.
    """

    member: Member
    breaker: CircuitBreaker
    window: Window
    in_flight: int = 0
    bindings: WeakSet[Binding] = field(default_factory=lambda: WeakSet[Binding]())
    capabilities: ModelCapabilities | None = None
    last_fault: ModelUnavailable | None = None
    paused_until: float = 0.0
    load: Load | None = None
    caches: bool = False
    emptied: asyncio.Event | None = None
    _loaded_at: float = 0.0
    _in_flight_then: int = 0
    _pauses: int = 0

    def admits(self, now: float) -> bool:
        """Whether a call may begin now."""
        return self.up(now) and self.in_flight + 1 <= self.window.limit(now)

    def up(self, now: float) -> bool:
        """Whether it serves, though there may be no room this moment."""
        return self.emptied is None and self.breaker.circuit is not Circuit.OPEN and now >= self.paused_until

    def ended(self) -> None:
        """A call that was under way is no more."""
        self.in_flight -= 1
        if self.emptied is not None and not self.in_flight:
            self.emptied.set()

    def opens_at(self, now: float) -> float:
        """The earliest time at which it may admit a call that no call under way has to end for."""
        if self.breaker.circuit is Circuit.OPEN:
            return self.breaker.retry_at
        if now < self.paused_until:
            return self.paused_until
        return self.window.next_growth(now)

    def succeeded(self, epoch: int) -> bool:
        """A call was answered; whether that closed the circuit."""
        self._pauses = 0
        self.window.succeeded()
        return self.breaker.succeeded(epoch)

    def turned_away(self, fault: Fault, *, began: float, now: float, pause_seconds: float) -> None:
        """A call was rejected for overload: fewer at once from now on, and none for as long as the server asks.

        A server that does not say is left alone for `pause_seconds`, twice as long each further time in a row.
        """
        pause = fault.retry_after
        if self.window.turned_away(self.in_flight, began, now) and pause is None:
            pause = min(_LONGEST_OWN_PAUSE_SECONDS, pause_seconds * 2.0 ** min(self._pauses, 10))
            self._pauses += 1
        if pause is not None:
            # Other processes were told the same; they must not all come back at one moment.
            pause = min(pause, _LONGEST_PAUSE_SECONDS) + pause_seconds * random.random()  # noqa: S311
            self.paused_until = max(self.paused_until, now + pause)

    def take_load(self, load: Load, *, asked_with: int, now: float) -> None:
        """Its own word about its load came in; it was asked with so many calls of ours under way."""
        before, self.load, self._loaded_at = self.load, load, now
        # Whichever is more: a call that ended meanwhile is nobody else's.
        self._in_flight_then = max(asked_with, self.in_flight)
        self.caches = self.caches or load.prefix_hits > 0
        queries = load.prefix_queries - before.prefix_queries if before else 0.0
        hits = load.prefix_hits - before.prefix_hits if before else 0.0
        self.window.adjust(asked_with, load, hit_share=hits / queries if queries > 0 and self.caches else 1.0)

    def pressure(self, now: float, *, stale_after: float) -> tuple[bool, float, float]:
        """How busy it is, to compare: out of cache, requests of everybody's there, part of its cache in use.

        Ours since it last told are added to what it told, so that its old word draws no herd (M. Mitzenmacher, "How
        Useful Is Old Information?", 2000). A run that is bound here counts as one request, between its calls too. What
        waits there counts twice: it stands for work ahead of ours.
        """
        ours = float(max(self.in_flight, len(self.bindings)))
        if self.load is None or now - self._loaded_at > stale_after:
            return False, ours, 0.0
        load = self.load
        others = max(0, load.running + load.waiting - self._in_flight_then)
        return load.waiting > 0 and load.cache >= 0.95, ours + others + load.waiting, load.cache

    def queues(self, now: float, *, stale_after: float) -> bool:
        """Whether the server said lately that requests wait there."""
        return self.load is not None and self.load.waiting > 0 and now - self._loaded_at <= stale_after
