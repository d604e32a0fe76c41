"""What a run may spend, as a node of a tree: a sub-agent gets what is left of its parent's."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace

from swe_ai_fleet.domain.budget import Limits, Prices, Usage, lower
from swe_ai_fleet.domain.trajectory import StopReason


class Clock:
    """The time that a run has worked, in seconds: it stands while the run waits for a model server that is away."""

    def __init__(self) -> None:
        self._waits, self._stopped_at, self._stood = 0, 0.0, 0.0
        self._limits: dict[asyncio.Timeout, float] = {}

    def now(self) -> float:
        return (self._stopped_at if self._waits else time.monotonic()) - self._stood

    def stop(self) -> bool:
        """Stand until `go` was called as often; whether it ran."""
        self._waits += 1
        if self._waits == 1:
            self._stopped_at = time.monotonic()
            self._set()
        return self._waits == 1

    def go(self) -> float:
        """Run again, if nothing else waits; the seconds that it stood then, else 0."""
        self._waits -= 1
        if self._waits:
            return 0.0
        stood = time.monotonic() - self._stopped_at
        self._stood += stood
        self._set()
        return stood

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncGenerator[None]:
        """Let the work inside take so long. Raises TimeoutError."""
        async with asyncio.timeout(None) as limit:
            self._limits[limit] = self.now() + seconds
            self._set()
            try:
                yield
            finally:
                del self._limits[limit]

    def _set(self) -> None:
        at = asyncio.get_running_loop().time() - self.now()
        for limit, ends in self._limits.items():
            if not limit.expired():
                limit.reschedule(None if self._waits else at + ends)


class Budget:
    """Counts what is spent against limits; what a child is given is reserved until it is done.

    Without `prices` nothing costs anything.
    """

    def __init__(
        self, limits: Limits, *, prices: Prices | None = None, spent: Usage | None = None, clock: Clock | None = None
    ) -> None:
        self.limits = limits
        self.clock = clock or Clock()
        self.usage = spent or Usage()
        self._prices = prices
        self._reserved = Usage()
        self._started_at = self.clock.now() - self.usage.duration_ms / 1000

    def begin(self, prices: Prices | None) -> None:
        """Start the clock, now that it is known what tokens cost; only what was spent before counts."""
        self._prices = prices
        self._started_at = self.clock.now() - self.usage.duration_ms / 1000

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.limits.timeout_seconds - (self.clock.now() - self._started_at))

    def time_limit(self, most: float = math.inf) -> AbstractAsyncContextManager[None]:
        """Lets the work inside take what is left, and `most` seconds at most. Raises TimeoutError."""
        return self.clock.limit(min(most, self.seconds_left))

    @property
    def tool_calls_left(self) -> int:
        return max(0, self.limits.max_tool_calls - self.usage.tool_calls - self._reserved.tool_calls)

    @property
    def tokens_left(self) -> int | None:
        """Prompt and completion tokens together; None where nothing limits them."""
        if not self.limits.max_tokens:
            return None
        return max(0, self.limits.max_tokens - self.usage.total_tokens - self._reserved.total_tokens)

    @property
    def cost_left(self) -> float | None:
        if not self.limits.max_cost:
            return None
        return max(0.0, self.limits.max_cost - self.usage.cost - self._reserved.cost)

    def spent(self, *, iterations: int) -> StopReason | None:
        """Which limit is reached, if one is. Time is not looked at: a time-out interrupts, it is not waited for."""
        if iterations >= self.limits.max_iterations:
            return StopReason.MAX_ITERATIONS
        if not self.tool_calls_left:
            return StopReason.MAX_TOOL_CALLS
        if self.tokens_left == 0:
            return StopReason.MAX_TOKENS
        if self.cost_left == 0:
            return StopReason.MAX_COST
        return None

    @property
    def overshoot(self) -> str:
        """How far the last reply went beyond the tokens allowed, in words: a prompt is counted once it is answered."""
        spent, allowed = self.usage.total_tokens, self.limits.max_tokens
        return f": {spent} tokens were used, {allowed} allowed" if 0 < allowed < spent else ""

    def settle(self, usage: Usage) -> None:
        if self._prices is not None and not usage.cost:
            usage = replace(usage, cost=self._prices.cost(usage))
        self.usage += usage

    def total(self) -> Usage:
        """What was spent so far, with the time on the clock."""
        return replace(self.usage, duration_ms=round((self.clock.now() - self._started_at) * 1000))

    @contextmanager
    def child(self, limits: Limits) -> Generator[Budget]:
        """At most `limits` and at most what is left here, reserved meanwhile and settled at the end."""
        granted = replace(
            limits,
            max_tool_calls=min(limits.max_tool_calls, self.tool_calls_left),
            max_tokens=int(lower(limits.max_tokens, self.tokens_left, least=1)),
            max_cost=lower(limits.max_cost, self.cost_left, least=1e-9),
            timeout_seconds=min(limits.timeout_seconds, self.seconds_left),
        )
        reserved = Usage(prompt_tokens=granted.max_tokens, tool_calls=granted.max_tool_calls, cost=granted.max_cost)
        child = Budget(granted, prices=self._prices, clock=self.clock)
        self._reserved += reserved
        try:
            yield child
        finally:
            self._reserved = replace(
                self._reserved,
                prompt_tokens=self._reserved.prompt_tokens - reserved.prompt_tokens,
                tool_calls=self._reserved.tool_calls - reserved.tool_calls,
                cost=self._reserved.cost - reserved.cost,
            )
            self.usage += replace(child.usage, duration_ms=0)
