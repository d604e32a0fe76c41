"""One endpoint of the pool: its model, its circuit breaker, and its limit of concurrent calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

from swe_ai_fleet.adapters.model_pool.load import Circuit, CircuitBreaker, Fault, ServerLoad, Window
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ModelUnavailable
from swe_ai_fleet.domain.message import ModelCapabilities
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.ports import ChatModel

_LONGEST_PAUSE_SECONDS = 300.0
_LONGEST_OWN_PAUSE_SECONDS = 30.0
_LOADED_MARGIN = 8
_COLD_MARGIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """A model server in a pool. `name` is shown to operators, so it must contain no secret.

    The model must not retry itself. Without `load` the pool only knows its own running calls. `close` is called once
    the member has left the pool and its last call has ended, or the pool is closed.
    """

    name: str
    model: ChatModel
    load: Callable[[], Awaitable[ServerLoad | None]] | None = None
    close: Callable[[], Awaitable[None]] | None = None


@dataclass(eq=False, slots=True, weakref_slot=True, kw_only=True)
class Binding:
    """An agent run's binding to an endpoint, while a session holds it, and the service it has received.

    Attributes:
        name: a hash that is sent to servers and routers.
        started: the time of its first session, by the process's monotonic clock.
        attained: tokens that servers computed for it: uncached prompt tokens and replies.
        is_cold: less than half of the previous prompt was in the server's cache, if it has one.
    """

    name: str
    tenant: str = ""
    priority: int = 0
    started: float = 0.0
    attained: int = 0
    prompt_tokens: int = 0
    is_cold: bool = False
    endpoint: Endpoint | None = None

    def add_usage(self, usage: Usage) -> None:
        """Count the tokens of an answered call, and note whether its prompt was in the cache."""
        self.attained += usage.total_tokens - usage.cached_tokens
        if self.endpoint is not None:
            self.endpoint.caches = self.endpoint.caches or usage.cached_tokens > 0
            self.is_cold = self.endpoint.caches and 2 * usage.cached_tokens < self.prompt_tokens
        self.prompt_tokens = usage.prompt_tokens

    def bind(self, endpoint: Endpoint) -> None:
        """Route the next calls to this endpoint."""
        if self.endpoint is not None:
            self.endpoint.bindings.discard(self)
        self.endpoint = endpoint
        endpoint.bindings.add(self)


@dataclass(eq=False, kw_only=True)
class Endpoint:
    """A member's state in this process. Times are the event loop's.

    `emptied` exists once the member has left the pool, and is set when its last call has ended.
    """

    member: PoolMember
    breaker: CircuitBreaker
    window: Window
    in_flight: int = 0
    bindings: WeakSet[Binding] = field(default_factory=lambda: WeakSet[Binding]())
    capabilities: ModelCapabilities | None = None
    last_fault: ModelUnavailable | None = None
    paused_until: float = 0.0
    load: ServerLoad | None = None
    caches: bool = False
    emptied: asyncio.Event | None = None
    _loaded_at: float = 0.0
    _in_flight_at_load: int = 0
    _pauses: int = 0

    def admits(self, now: float) -> bool:
        """Whether another call may begin now."""
        return self.up(now) and self.in_flight + 1 <= self.window.limit(now)

    def up(self, now: float) -> bool:
        """Whether the endpoint is available, though perhaps without room at the moment."""
        return self.emptied is None and self.breaker.circuit is not Circuit.OPEN and now >= self.paused_until

    def ended(self) -> None:
        """Note the end of a running call."""
        self.in_flight -= 1
        if self.emptied is not None and not self.in_flight:
            self.emptied.set()

    def opens_at(self, now: float) -> float:
        """The earliest time at which it may admit a call even if no running call ends."""
        if self.breaker.circuit is Circuit.OPEN:
            return self.breaker.retry_at
        if now < self.paused_until:
            return self.paused_until
        return self.window.next_growth(now)

    def succeeded(self, epoch: int) -> bool:
        """Note an answered call; returns whether that closed the circuit."""
        self._pauses = 0
        self.window.succeeded()
        return self.breaker.succeeded(epoch)

    def turned_away(self, fault: Fault, *, began: float, now: float, pause_seconds: float) -> None:
        """Note a call rejected for overload: allow fewer calls, and none for as long as the server asks.

        Without such a time the pause is `pause_seconds`, doubled each further time in a row.
        """
        pause = fault.retry_after
        if self.window.turned_away(self.in_flight, began, now) and pause is None:
            pause = min(_LONGEST_OWN_PAUSE_SECONDS, pause_seconds * 2.0 ** min(self._pauses, 10))
            self._pauses += 1
        if pause is not None:
            # Other processes got the same answer and must not all return at once.
            pause = min(pause, _LONGEST_PAUSE_SECONDS) + pause_seconds * random.random()  # noqa: S311
            self.paused_until = max(self.paused_until, now + pause)

    def take_load(self, load: ServerLoad, *, asked_with: int, now: float) -> None:
        """Take the load that the server reported, when `asked_with` calls of ours were running."""
        before, self.load, self._loaded_at = self.load, load, now
        # The larger number: a call of ours that ended meanwhile must not count as another process's.
        self._in_flight_at_load = max(asked_with, self.in_flight)
        self.caches = self.caches or load.prefix_hits > 0
        queries = load.prefix_queries - before.prefix_queries if before else 0.0
        hits = load.prefix_hits - before.prefix_hits if before else 0.0
        self.window.adjust(asked_with, load, hit_share=hits / queries if queries > 0 and self.caches else 1.0)

    def pressure(self, now: float, *, stale_after: float) -> tuple[bool, float, float]:
        """A sort key of how busy it is: whether its cache is full, the requests of all clients, its cache usage.

        Our calls since its last report are added to the report, so that an old one attracts no herd (M. Mitzenmacher,
        "How Useful Is Old Information?", 2000). A run that is bound here counts as one request, between its calls too.
        Waiting requests count twice, as work ahead of ours.
        """
        ours = float(max(self.in_flight, len(self.bindings)))
        if self.load is None or now - self._loaded_at > stale_after:
            return False, ours, 0.0
        load = self.load
        others = max(0, load.running + load.waiting - self._in_flight_at_load)
        return load.waiting > 0 and load.cache >= 0.95, ours + others + load.waiting, load.cache

    def queues(self, now: float, *, stale_after: float) -> bool:
        """Whether the server recently reported waiting requests."""
        return self.load is not None and self.load.waiting > 0 and now - self._loaded_at <= stale_after


class CallRoutes:
    """The endpoint for each call at one moment: its run's if available, else the least busy one.

    A run leaves its endpoint if that has no room or reports waiting requests, and another one is much less busy. A run
    whose prompt is no longer in the endpoint's cache leaves it more readily.
    """

    def __init__(self, endpoints: Sequence[Endpoint], now: float, *, stale_after: float) -> None:
        self.ready = [endpoint for endpoint in endpoints if endpoint.admits(now)]
        self._now, self._stale_after = now, stale_after
        self._only_one = len(endpoints) == 1
        self._ranked: list[tuple[tuple[bool, float, float], Endpoint]] = []
        if self.ready and not self._only_one:
            ranked = [(self._pressure(endpoint), random.random(), endpoint) for endpoint in self.ready]  # noqa: S311
            self._ranked = [(pressure, endpoint) for pressure, _, endpoint in sorted(ranked, key=lambda rank: rank[:2])]
        self._by_binding: dict[tuple[Endpoint, bool], Endpoint | None] = {}

    def of(self, session: Binding | None, avoid: Endpoint | None) -> Endpoint | None:
        """The endpoint for a run's call now, if possible not the one to avoid; None if the call must wait."""
        if self._only_one or not self.ready:
            return self.ready[0] if self.ready else None
        best = next((endpoint for _, endpoint in self._ranked if endpoint is not avoid), self._ranked[0][1])
        if session is None or session.endpoint is None:
            return best
        bound = session.endpoint
        if bound is avoid:
            return best
        key = bound, session.is_cold
        if key not in self._by_binding:
            self._by_binding[key] = self._from(bound, is_cold=session.is_cold)
        return self._by_binding[key]

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


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counted since the pool was opened.

    Attributes:
        admitted: calls that reached an endpoint, retries included.
        gave_up: calls that failed because no endpoint served them in time.
    """

    admitted: int = 0
    waited: int = 0
    failed_over: int = 0
    moved: int = 0
    opened: int = 0
    turned_away: int = 0
    gave_up: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """One member in this process; `limit` is its current limit of concurrent calls.

    `load` is the server's own report, None without one.
    """

    name: str
    circuit: Circuit
    in_flight: int
    limit: float
    sessions: int
    load: ServerLoad | None
    last_fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """All endpoints, and the number of calls that wait for one."""

    endpoints: tuple[MemberStatus, ...]
    waiting: int

    @property
    def summary(self) -> str:
        """A line for people: `2 of 3 endpoints up, 12 calls running, 0 waiting`."""
        up = sum(endpoint.circuit is not Circuit.OPEN for endpoint in self.endpoints)
        calls = counted(sum(endpoint.in_flight for endpoint in self.endpoints), "call")
        return f"{up} of {len(self.endpoints)} endpoints up, {calls} running, {self.waiting} waiting"
