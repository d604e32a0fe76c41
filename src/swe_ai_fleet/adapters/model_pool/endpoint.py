"""One endpoint of the pool: its model, its circuit breaker, and how many calls it may have under way."""

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
    """What a pool is made of. `name` is shown to operators, so no secret may stand in it.

    The model must not retry on its own. Without `load` the pool goes by what it has under way itself. `close` is called
    once the member has left the pool and its last call has ended, or the pool is closed.
    """

    name: str
    model: ChatModel
    load: Callable[[], Awaitable[ServerLoad | None]] | None = None
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

    def take_load(self, load: ServerLoad, *, asked_with: int, now: float) -> None:
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


class CallRoutes:
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


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counted since the pool was opened.

    Attributes:
        admitted: calls that reached an endpoint, tries again included.
        waited: times a call had to wait for an endpoint.
        failed_over: calls that went to another endpoint after a fault.
        moved: agent runs that were bound to another endpoint.
        opened: circuits that opened.
        turned_away: calls that a server refused for overload.
        gave_up: calls that ended because no endpoint served them in time.
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
    """One member as this process sees it; `limit` is the most calls that it would let be under way.

    `load` is the server's own word, None where it gives none.
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
    """All endpoints, and how many calls wait for one."""

    endpoints: tuple[MemberStatus, ...]
    waiting: int

    @property
    def summary(self) -> str:
        """A line for people: `2 of 3 endpoints up, 12 calls running, 0 waiting`."""
        up = sum(endpoint.circuit is not Circuit.OPEN for endpoint in self.endpoints)
        calls = counted(sum(endpoint.in_flight for endpoint in self.endpoints), "call")
        return f"{up} of {len(self.endpoints)} endpoints up, {calls} running, {self.waiting} waiting"
