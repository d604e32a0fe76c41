"""The budget of a run. Budgets form a tree: a sub-agent gets a part of what its parent has left."""

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
    """The working time of a run, in seconds; stopped while the run waits for a model server that is away."""

    def __init__(self) -> None:
        self._waits, self._stopped_at, self._stopped_for = 0, 0.0, 0.0
        self._limits: dict[asyncio.Timeout, float] = {}

    def now(self) -> float:
        return (self._stopped_at if self._waits else time.monotonic()) - self._stopped_for

    def stop(self) -> bool:
        """Stop until `go` was called as often; whether the clock was running."""
        self._waits += 1
        if self._waits == 1:
            self._stopped_at = time.monotonic()
            self._reschedule()
        return self._waits == 1

    def go(self) -> float:
        """Undo one `stop`. The seconds that the clock was stopped, if this made it run again, else 0."""
        self._waits -= 1
        if self._waits:
            return 0.0
        stopped_for = time.monotonic() - self._stopped_at
        self._stopped_for += stopped_for
        self._reschedule()
        return stopped_for

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncGenerator[None]:
        """Limit the work inside to `seconds` of this clock. Raises TimeoutError."""
        async with asyncio.timeout(None) as limit:
            self._limits[limit] = self.now() + seconds
            self._reschedule()
            try:
                yield
            finally:
                del self._limits[limit]

    def _reschedule(self) -> None:
        at = asyncio.get_running_loop().time() - self.now()
        for limit, ends in self._limits.items():
            if not limit.expired():
                limit.reschedule(None if self._waits else at + ends)


class Budget:
    """Counts usage against limits; the budget of a child is reserved until the child is done.

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
        """Start the clock anew, now that the prices are known; earlier usage counts."""
        self._prices = prices
        self._started_at = self.clock.now() - self.usage.duration_ms / 1000

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.limits.timeout_seconds - (self.clock.now() - self._started_at))

    def time_limit(self, most: float = math.inf) -> AbstractAsyncContextManager[None]:
        """Limit the work inside to the seconds left, and to `most` seconds. Raises TimeoutError."""
        return self.clock.limit(min(most, self.seconds_left))

    @property
    def tool_calls_left(self) -> int:
        return max(0, self.limits.max_tool_calls - self.usage.tool_calls - self._reserved.tool_calls)

    @property
    def tokens_left(self) -> int | None:
        """Prompt and completion tokens together; None if nothing limits them."""
        if not self.limits.max_tokens:
            return None
        return max(0, self.limits.max_tokens - self.usage.total_tokens - self._reserved.total_tokens)

    @property
    def cost_left(self) -> float | None:
        if not self.limits.max_cost:
            return None
        return max(0.0, self.limits.max_cost - self.usage.cost - self._reserved.cost)

    def spent(self, *, iterations: int) -> StopReason | None:
        """The limit that is reached, if one is; not that on time, which `time_limit` enforces."""
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
        """How many tokens were used beyond the limit, in words: a prompt is only counted with its reply."""
        spent, allowed = self.usage.total_tokens, self.limits.max_tokens
        return f": {spent} tokens were used, {allowed} allowed" if 0 < allowed < spent else ""

    def settle(self, usage: Usage) -> None:
        if self._prices is not None and not usage.cost:
            usage = replace(usage, cost=self._prices.cost(usage))
        self.usage += usage

    def total(self) -> Usage:
        """The usage so far, with the time on the clock."""
        return replace(self.usage, duration_ms=round((self.clock.now() - self._started_at) * 1000))

    @contextmanager
    def child(self, limits: Limits) -> Generator[Budget]:
        """A budget of `limits`, but no more than is left here; reserved meanwhile, and settled at the end."""
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
