"""A call's stay: a stream that goes on for hours ends soon after what let its caller in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from swe_ai_fleet.domain.errors import FleetError

CHECK_SECONDS = 20.0
"""Between two looks at whether a caller may still be in."""

T = TypeVar("T")


class Stay:
    """Looks again and again, by a timer, and interrupts who waits once the caller may not stay.

    Attributes:
        refusal: Why they may not; None while they may.
    """

    def __init__(self, refused: Callable[[], Awaitable[FleetError | None]], seconds: float) -> None:
        self.refusal: FleetError | None = None
        self._refused = refused
        self._seconds = seconds
        self._waiting: asyncio.Timeout | None = None
        self._asking: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    async def next(self, replies: AsyncGenerator[T, None]) -> T | None:
        """The next reply; None after the last, or as soon as the caller may not stay.

        Who is just being sent a reply is not cut off, but told at the next.
        """
        if self.refusal is None:
            try:
                async with asyncio.timeout(None) as self._waiting:
                    return await anext(replies, None)
            except TimeoutError:
                # Another's has nothing to do with the stay.
                if self.refusal is None:
                    raise
            finally:
                self._waiting = None
        return None

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def _look(self) -> None:
        self._asking = asyncio.create_task(self._ask(), name="a call's stay")

    async def _ask(self) -> None:
        self.refusal = await self._refused()
        loop = asyncio.get_running_loop()
        if self.refusal is None:
            self._timer = loop.call_later(self._seconds, self._look)
        elif self._waiting is not None:
            self._waiting.reschedule(loop.time())
