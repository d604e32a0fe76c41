"""The dispatcher of a pool: it routes calls to endpoints, lets them wait, and retries failed ones, by `PoolRules`."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog

from swe_ai_fleet.adapters.model_pool.admission import QUANTUM_TOKENS, CallQueue
from swe_ai_fleet.adapters.model_pool.endpoint import Binding, CallRoutes, Counters, Endpoint, PoolMember
from swe_ai_fleet.adapters.model_pool.load import Circuit, CircuitBreaker, Fault, FaultKind, Window
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError, ModelRejected, ModelUnavailable
from swe_ai_fleet.ports import CallTimeout, ChatModel

_T = TypeVar("_T")
_STALE_POLLS = 3
_MOST_TRIES = 3
"""The most attempts of a call that servers answer with 5xx or no completion."""
_MOST_CUTS = 8
"""The most attempts of a call whose reply is cut off: then the call itself probably crashes servers."""
PING_SECONDS = 10.0
_SHORTEST_WAIT = 0.001
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """The timeouts, retries and polling of a pool. Times are in seconds.

    Attributes:
        timeout: how long a call waits while no endpoint is available, and retries after its first fault.
        notice: how long no endpoint is available before a waiting call reports it, doubled each further time.
        backoff: before the next attempt at the same endpoint, doubled each time, with jitter.
        open_for: how long a circuit stays open the first time, doubled each time it opens again.
        ramp: the time in which a recovered endpoint may get twice as many calls at once.
        quantum: see `CallQueue`.
    """

    timeout: float = 120.0
    notice: float = 5.0
    backoff: float = 1.0
    longest_backoff: float = 30.0
    open_for: float = 1.0
    longest_open: float = 10.0
    ramp: float = 2.0
    poll_every: float = 2.0
    quantum: int = QUANTUM_TOKENS


@dataclass(eq=False, slots=True)
class _Call:
    """A call and its attempts. `deadline` is the end of its retries, None before its first fault.

    `on_away` is called with True when no endpoint is available for long, and with False when one is again.
    """

    order: int
    session: Binding | None
    timeout: float
    notice: float
    on_away: Callable[[bool], None] | None = None
    is_away: bool = False
    assigned: asyncio.Future[Endpoint] | None = None
    tries: int = 0
    broken: int = 0
    cut: int = 0
    deadline: float | None = None
    avoid: Endpoint | None = None
    error: ModelUnavailable | None = None

    def report(self, *, is_away: bool) -> None:
        """Call `on_away` if the state has changed."""
        if is_away is not self.is_away and self.on_away is not None:
            self.is_away = is_away
            self.on_away(is_away)


class CallDispatcher:
    """Routes calls to endpoints: the least loaded one, or the one that the agent run is bound to.

    Calls without an endpoint that has room wait in a `CallQueue`; a retry keeps a call's position. An endpoint whose
    circuit is open is pinged by one task, and gradually gets calls again.

    Args:
        source: where further members may be discovered; empty: these are all.
    """

    def __init__(
        self,
        members: Sequence[PoolMember],
        *,
        read_fault: Callable[[ModelUnavailable], Fault],
        rules: PoolRules,
        source: str = "",
    ) -> None:
        self._read_fault = read_fault
        self._rules = rules
        self._source = source
        self.endpoints = tuple(map(self._endpoint, members))
        self.counters = Counters()
        self._stale_after = _STALE_POLLS * rules.poll_every
        self._orders = itertools.count()
        self._queue: CallQueue[_Call] = CallQueue(rules.quantum)
        self._timer: asyncio.TimerHandle | None = None
        self._recoveries: dict[asyncio.Task[None], Endpoint] = {}

    @property
    def waiting(self) -> int:
        """The number of calls that wait for an endpoint."""
        return len(self._queue)

    def set_members(self, members: Collection[PoolMember]) -> tuple[list[Endpoint], list[Endpoint]]:
        """Replace the members; returns the new and the departed endpoints.

        A new endpoint is pinged first and gets calls gradually; a departed one finishes its running calls.
        """
        remaining = [endpoint for endpoint in self.endpoints if endpoint.member in members]
        remaining_members = [endpoint.member for endpoint in remaining]
        departed = [endpoint for endpoint in self.endpoints if endpoint.member not in members]
        new = [self._endpoint(member) for member in members if member not in remaining_members]
        self.endpoints = (*remaining, *new)
        for endpoint in departed:
            endpoint.emptied = asyncio.Event()
            if not endpoint.in_flight:
                endpoint.emptied.set()
        for recovery, endpoint in self._recoveries.items():
            if endpoint in departed:
                recovery.cancel()
        for endpoint in new:
            endpoint.breaker.circuit = Circuit.OPEN
            self._ping_until_back(endpoint)
        self._dispatch()
        return new, departed

    async def serve(
        self,
        operation: Callable[[ChatModel], Awaitable[_T]],
        binding: Binding | None,
        timeout: CallTimeout,
    ) -> _T:
        """Run an operation on an endpoint, with retries on others, waiting while none is available.

        Raises ContextTooLong and ModelRejected at once, ModelUnavailable once the timeout or the retries are used up.
        """
        seconds = self._rules.timeout if timeout.seconds is None else timeout.seconds
        call = _Call(next(self._orders), binding, seconds, self._rules.notice, timeout.hear)
        while True:
            endpoint = await self._acquire(call)
            self.counters.admitted += 1
            epoch, began = endpoint.breaker.epoch, _now()
            try:
                result = await operation(endpoint.member.model)
            except ModelUnavailable as error:
                fault = self._failed(endpoint, error, epoch=epoch, began=began)
                call.error = failure = error
            except (ModelRejected, ContextTooLong):
                self._note_answer(endpoint, epoch)
                raise
            else:
                self._note_answer(endpoint, epoch)
                return result
            finally:
                endpoint.ended()
                self._dispatch()
            await self._before_retry(call, endpoint, fault, failure)

    async def close(self) -> None:
        """End background tasks. Calls that still wait for an endpoint fail with ModelUnavailable."""
        if self._timer is not None:
            self._timer.cancel()
        for call in tuple(self._queue):
            self._queue.remove(call)
            if call.assigned is not None and not call.assigned.done():
                call.assigned.set_exception(ModelUnavailable("the pool of model servers was closed", field="model_url"))
        recoveries = list(self._recoveries)
        for recovery in recoveries:
            recovery.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)

    async def _acquire(self, call: _Call) -> Endpoint:
        if not self._queue and (endpoint := self._routes(_now()).of(call.session, call.avoid)) is not None:
            return self._assign(call, endpoint)
        call.assigned = assigned = asyncio.get_running_loop().create_future()
        self._queue.add(call)
        self._dispatch()
        if assigned.done():
            return assigned.result()
        self.counters.waited += 1
        limit = _now() + call.timeout if call.deadline is None else call.deadline
        try:
            while not assigned.done():
                now = _now()
                if not (
                    self._source
                    or any(endpoint.up(now) or endpoint.opens_at(now) <= limit for endpoint in self.endpoints)
                ):
                    raise self._timed_out(call)
                wakes_at = limit if call.on_away is None else min(limit, now + call.notice)
                await asyncio.wait((assigned,), timeout=max(0.0, wakes_at - now))
                if assigned.done():
                    break
                is_up = any(endpoint.up(now := _now()) for endpoint in self.endpoints)
                if now >= limit:
                    if not is_up:
                        raise self._timed_out(call)
                    # A server works for other calls, and this one still waits for its turn: no reason to give up.
                    limit = now + max(call.timeout, 1.0)
                call.report(is_away=not is_up)
            if call.is_away:
                call.notice *= 2
                call.report(is_away=False)
        except BaseException:
            if assigned.done() and not assigned.cancelled() and assigned.exception() is None:
                assigned.result().ended()
            assigned.cancel()
            call.report(is_away=False)
            self._queue.remove(call)
            self._dispatch()
            raise
        return assigned.result()

    def _dispatch(self) -> None:
        """Assign endpoints with room to the waiting calls, in the order of their turns."""
        if not self._queue:
            return
        now = _now()
        while self._queue:
            if not (routes := self._routes(now)).ready:
                break
            call = self._queue.first(lambda call, to=routes.of: to(call.session, call.avoid) is not None)
            if call is None or call.assigned is None or (endpoint := routes.of(call.session, call.avoid)) is None:
                break
            self._queue.take(call)
            call.assigned.set_result(self._assign(call, endpoint))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queue:
            # An endpoint with an open circuit has its own task.
            at = min(
                (endpoint.opens_at(now) for endpoint in self.endpoints if endpoint.breaker.circuit is not Circuit.OPEN),
                default=math.inf,
            )
            if at < math.inf:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_at(max(at, now + _SHORTEST_WAIT), self._dispatch)

    def _routes(self, now: float) -> CallRoutes:
        return CallRoutes(self.endpoints, now, stale_after=self._stale_after)

    def _assign(self, call: _Call, endpoint: Endpoint) -> Endpoint:
        endpoint.in_flight += 1
        session = call.session
        # After a single fault the run stays bound to its warm prefix cache.
        is_detour = session is None or (session.endpoint is not None and session.endpoint is call.avoid)
        if session is not None and session.endpoint is not endpoint and not is_detour:
            self.counters.moved += session.endpoint is not None
            session.bind(endpoint)
        return endpoint

    def _note_answer(self, endpoint: Endpoint, epoch: int) -> None:
        if endpoint.succeeded(epoch):
            _log.info("a model server is available again", server=endpoint.member.name)

    def _failed(self, endpoint: Endpoint, error: ModelUnavailable, *, epoch: int, began: float) -> Fault:
        fault, now = self._read_fault(error), _now()
        endpoint.last_fault = error
        if fault.kind is FaultKind.OVERLOADED:
            self.counters.turned_away += 1
            endpoint.turned_away(fault, began=began, now=now, pause_seconds=self._rules.backoff)
            return fault
        was_closed = endpoint.breaker.circuit is Circuit.CLOSED
        if endpoint.breaker.failed(epoch, now):
            self.counters.opened += 1
            if was_closed:
                _log.warning(
                    "a model server is not used for a while", server=endpoint.member.name, reason=error.message
                )
            self._ping_until_back(endpoint)
        return fault

    def _ping_until_back(self, endpoint: Endpoint) -> None:
        if endpoint.emptied is not None:
            return
        recovery = asyncio.create_task(self._recover(endpoint))
        self._recoveries[recovery] = endpoint
        recovery.add_done_callback(self._recoveries.pop)

    async def _before_retry(self, call: _Call, endpoint: Endpoint, fault: Fault, error: ModelUnavailable) -> None:
        """Wait before the next attempt. Raises the fault where there is none."""
        now = _now()
        call.tries += 1
        call.broken += fault.kind is FaultKind.BROKEN
        call.cut += fault.kind is FaultKind.CUT
        if call.deadline is None:
            call.deadline = now + call.timeout
        if call.broken >= _MOST_TRIES or call.cut >= _MOST_CUTS or now >= call.deadline:
            self.counters.gave_up += 1
            raise error
        call.avoid = endpoint
        if any(other.admits(now) for other in self.endpoints if other is not endpoint):
            self.counters.failed_over += 1
        elif endpoint.up(now):
            seconds = min(self._rules.longest_backoff, self._rules.backoff * 2.0 ** min(call.tries - 1, 30))
            await asyncio.sleep(min(seconds * random.uniform(0.5, 1.0), call.deadline - now))  # noqa: S311

    def _timed_out(self, call: _Call) -> ModelUnavailable:
        self.counters.gave_up += 1
        faults = [endpoint.last_fault for endpoint in self.endpoints if endpoint.last_fault is not None]
        last = call.error or (faults[-1] if faults else self.none_available())
        hint = last.hint or f"no server accepted the call within {call.timeout:g} s"
        return ModelUnavailable(last.message, field=last.field, hint=hint)

    def none_available(self) -> ModelUnavailable:
        """The fault where no endpoint is known, or none has had a fault."""
        where = f" at {self._source}" if self._source else ""
        return ModelUnavailable(f"no model server is available{where}", field="model_url")

    def _endpoint(self, member: PoolMember) -> Endpoint:
        rules = self._rules
        breaker = CircuitBreaker(open_seconds=rules.open_for, longest_seconds=rules.longest_open)
        return Endpoint(member=member, breaker=breaker, window=Window(ramp_seconds=rules.ramp))

    async def _recover(self, endpoint: Endpoint) -> None:
        """Ping an endpoint with an open circuit, at growing intervals, until it answers."""
        while True:
            await asyncio.sleep(max(0.0, endpoint.breaker.retry_at - _now()))
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await endpoint.member.model.ping()
            except (ModelUnavailable, TimeoutError):
                endpoint.breaker.ping_failed(_now())
                continue
            except ModelError:
                # A refusal is an answer; the next call gets the reason.
                pass
            break
        endpoint.breaker.ping_answered()
        endpoint.window.restart(_now())
        self._dispatch()


def _now() -> float:
    return asyncio.get_running_loop().time()
