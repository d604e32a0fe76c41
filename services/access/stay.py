"""A call's stay: a long stream ends soon after its caller's access ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from swe_ai_fleet.domain.errors import FleetError

CHECK_SECONDS = 20.0
"""The interval between checks of a caller's access."""

T = TypeVar("T")


class Stay:
    """Checks the caller's access periodically, and interrupts the waiting stream once it has ended.

    Attributes:
        refusal: Why access has ended; None while it lasts.
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

        A reply that is being sent is not cut off; the refusal comes instead of the next one.
        """
        if self.refusal is None:
            try:
                async with asyncio.timeout(None) as self._waiting:
                    return await anext(replies, None)
            except TimeoutError:
                # Another timeout has nothing to do with the stay.
                if self.refusal is None:
                    raise
            finally:
                self._waiting = None
        return None

    def close(self) -> None:
        """Stop checking."""
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
