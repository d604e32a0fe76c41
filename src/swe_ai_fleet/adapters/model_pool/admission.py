"""The fleet's limits on model calls, as one process gets and uses its share of them."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import structlog

from swe_ai_fleet.adapters.model_pool.endpoint import Binding
from swe_ai_fleet.adapters.model_pool.ledger import CallQuota, Demand, Grant, Ledger
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.message import AssistantMessage, ModelRequest

QUANTUM_TOKENS = 16_000
_FIRST_COME_EVERY = 16
"""Every sixteenth turn of a tenant goes to its oldest call."""
_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_TOOL = 150
_UNBOUNDED_COMPLETION = 1024
_IDLE_PART = 0.4
_LOST_SECONDS = 0.2
_RETURN_SECONDS = 1.0
_log = structlog.get_logger()


class WaitingCall(Protocol):
    """A waiting call. `order` grows with each call; `session` is None for a single call."""

    @property
    def order(self) -> int: ...

    @property
    def session(self) -> Binding | None: ...


_C = TypeVar("_C", bound=WaitingCall)


class CallQueue(Generic[_C]):
    """Waiting calls in the order of their turns.

    Tenants take turns. Of one tenant's calls those of the highest priority go first, and of these the one whose session
    has received the least service in tokens: least attained service, or foreground-background (M. Nuyens, A. Wierman,
    "The Foreground-Background queue: A survey", 2008), which needs no estimate of a session's length. It has levels
    (multi-level feedback: L. Kleinrock, "Queueing Systems" II, 4.7), each twice as wide as the last, since a session
    that is preempted loses its prompt in the server's cache: within a level the oldest session goes first and keeps
    its cache warm. Every sixteenth turn of a tenant goes to its oldest call, so that with `n` calls before it no call
    waits for more than `16 n` of its tenant's turns.

    Args:
        quantum: the width of the lowest level in tokens of service; 0: first come, first served.
    """

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._calls: dict[int, _C] = {}
        self._turns: dict[str, int] = {}
        self._served: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self):
        return iter(self._calls.values())

    def add(self, call: _C) -> None:
        """Add a waiting call."""
        self._calls[call.order] = call

    def remove(self, call: _C) -> None:
        """Remove a call without a turn."""
        self._calls.pop(call.order, None)

    def first(self, may: Callable[[_C], bool] | None = None) -> _C | None:
        """The next call among those that `may` go (None: all); None where there is none."""
        calls = self._calls.values()
        return min(calls if may is None else filter(may, calls), key=self._rank, default=None)

    def take(self, call: _C) -> None:
        """Give a call its turn."""
        self.remove(call)
        if not self._quantum:
            return
        tenant = call.session.tenant if call.session else ""
        self._served[tenant] += 1
        self._turns.pop(tenant, None)
        self._turns[tenant] = self._served.total()

    def _rank(self, call: _C) -> tuple[float, ...]:
        if not self._quantum:
            return (call.order,)
        session = call.session
        tenant = session.tenant if session else ""
        turn = self._turns.get(tenant, 0)
        if session is None:
            return (turn, 0, 0, 0, call.order)
        if self._served[tenant] % _FIRST_COME_EVERY == _FIRST_COME_EVERY - 1:
            return (turn, -math.inf, 0, 0, call.order)
        level = (session.attained // self._quantum).bit_length()
        return (turn, -session.priority, level, session.started, call.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A waiting call and the tokens it may take; `admitted` is set at its turn."""

    order: int
    session: Binding | None
    tokens: int
    admitted: asyncio.Future[None]


class LeasedAdmission:
    """Enforces the fleet's limits for one process: it leases calls and tokens in batches, and gives them to calls.

    Within the process calls are admitted in the order of a `CallQueue`. Calls never contact the ledger: one task renews
    the lease, and a call waits for that only when the lease is used up. A lease that can't be renewed expires, and no
    call begins until there is another one. Use it as an async context manager.
    """

    def __init__(
        self,
        ledger: Ledger,
        quota: CallQuota,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._quota = quota
        self._clock = clock
        self._host = uuid.uuid4().hex
        self._queue: CallQueue[_Call] = CallQueue(QUANTUM_TOKENS)
        self._orders = itertools.count()
        self.using = 0
        self._balance = 0
        self._typical = 0.0
        self._spent = 0
        self._grant = Grant(epoch="", slots=0, tokens=0, lease_seconds=0.0, again_seconds=0.0)
        self._ends_at = -math.inf
        self._held = self._lost = False
        self._wake = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._renewing = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._held:
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(_RETURN_SECONDS):
                    await self._ledger.renew(self._return(), self._quota)

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return len(self._queue)

    async def admit(self, tokens: int, session: Binding | None = None) -> None:
        """Wait for the turn of a call that may take so many tokens."""
        self._typical = tokens if not self._typical else 0.9 * self._typical + 0.1 * tokens
        if not self._queue and self._fits(tokens):
            self._take(tokens)
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = _Call(order=next(self._orders), session=session, tokens=tokens, admitted=admitted)
        self._queue.add(call)
        self._wake.set()
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.settle(tokens, 0)
            else:
                self._queue.remove(call)
                self._admit_waiting()
            raise

    def settle(self, reserved: int, spent: int) -> None:
        """End a call: its slot and its unspent tokens become free."""
        self.using -= 1
        self._balance += reserved - spent
        self._spent += spent
        self._admit_waiting()
        if not self._queue and (not self.using or self._grant.contended):
            self._wake.set()

    def _fits(self, tokens: int) -> bool:
        if self._quota.max_in_flight and self.using >= self._grant.slots:
            return False
        if self._quota.tokens_per_minute and self._balance < tokens:
            return False
        return self._clock() < self._ends_at

    def _take(self, tokens: int) -> None:
        self.using += 1
        self._balance -= tokens
        low = self._quota.tokens_per_minute and self._balance < self._typical
        if low or (self._quota.max_in_flight and self.using >= self._grant.slots):
            # Renew early, so that the next call need not wait.
            self._wake.set()

    def _admit_waiting(self) -> None:
        while (call := self._queue.first()) is not None and self._fits(call.tokens):
            self._queue.take(call)
            self._take(call.tokens)
            call.admitted.set_result(None)
        if self._queue:
            self._wake.set()

    async def _keep(self) -> None:
        """Renew the lease when more is needed and before it expires; return it once this process is idle."""
        idle_since: float | None = None
        while True:
            if not self._held and not self._queue:
                await self._wake.wait()
            elif not self._wake.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._grant.lease_seconds / 3):
                        await self._wake.wait()
            self._wake.clear()
            if self.using or self._queue:
                idle_since = None
            elif idle_since is None and not self._grant.contended:
                # A short pause between two calls is no reason to return the lease.
                idle_since = self._clock()
                continue
            idle = idle_since is not None and self._clock() - idle_since >= _IDLE_PART * self._grant.lease_seconds
            done = not self.using and not self._queue and (idle or self._grant.contended)
            await self._renew(self._return() if done else self._demand())
            if done:
                self._held, self._ends_at, idle_since = False, -math.inf, None
                self._balance = min(0, self._balance)
            if self._queue or not done:
                await asyncio.sleep(self._grant.again_seconds * random.uniform(0.75, 1.25))  # noqa: S311

    async def _renew(self, demand: Demand) -> None:
        asked_at = self._clock()
        try:
            grant = await self._ledger.renew(demand, self._quota)
        except Unavailable as error:
            if not self._lost:
                self._lost = True
                _log.warning("the fleet's limits on model calls are not available", reason=error.message)
            self._wake.set()
            await asyncio.sleep(_LOST_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311
            return
        self._grant, self._held, self._lost, self._spent = grant, True, False, 0
        # Counted from before the request, so that the lease never ends later here than in the ledger.
        self._ends_at = asked_at + grant.lease_seconds
        self._balance += grant.tokens
        self._admit_waiting()

    def _demand(self) -> Demand:
        want = head = spare = 0
        if self._quota.tokens_per_minute:
            queued = sum(call.tokens for call in self._queue)
            # Before the next renewal at least as many tokens are needed as were spent since the last one.
            soon = round(self._typical * (self.using + 1)) + 2 * self._spent
            want = max(0, queued + soon - self._balance)
            first = self._queue.first()
            head = max(0, first.tokens - self._balance) if first else 0
        if self._quota.max_in_flight:
            spare = max(1, self.using // 4)
        return Demand(
            host=self._host,
            epoch=self._grant.epoch,
            slots=self._grant.slots if self._clock() < self._ends_at else 0,
            using=self.using,
            waiting=len(self._queue),
            spare=spare,
            tokens=want,
            head=head,
        )

    def _return(self) -> Demand:
        return Demand(host=self._host, epoch=self._grant.epoch, returned=max(0, self._balance))


def estimated_tokens(request: ModelRequest) -> int:
    """An estimate of a call's tokens: one for four characters, plus its limit for the completion or 1,024."""
    if (foreign := request.passthrough) is not None:
        return foreign.characters // _CHARACTERS_PER_TOKEN + (foreign.most_tokens or _UNBOUNDED_COMPLETION)
    characters = 0
    for message in request.messages:
        characters += len(message.content)
        if isinstance(message, AssistantMessage):
            characters += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    completion = request.sampling.max_tokens or _UNBOUNDED_COMPLETION
    return characters // _CHARACTERS_PER_TOKEN + _TOKENS_PER_TOOL * len(request.tools) + completion
