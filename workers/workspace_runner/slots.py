"""Room for jobs in one runner, shared by queues of different priority."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Slots:
    """A number of slots; of those who wait, the ones of the highest rank (0) go first, in the order they came.

    Args:
        number: How many jobs may run at a time.
        ranks: How many classes there are.
    """

    def __init__(self, number: int, ranks: int) -> None:
        self._number = number
        self._taken = 0
        self._waiting = [0] * ranks
        self._freed = asyncio.Condition()

    @property
    def taken(self) -> int:
        """Jobs that have a slot."""
        return self._taken

    @property
    def waiting(self) -> int:
        """Jobs that wait for one here."""
        return sum(self._waiting)

    async def idle(self) -> None:
        """Wait until nobody has a slot, and nobody waits for one."""
        async with self._freed:
            await self._freed.wait_for(lambda: not self._taken and not self.waiting)

    async def room(self, rank: int) -> int:
        """Wait until a job of a rank would get a slot at once; for how many there is room."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._open(rank) and not self._waiting[rank])
            return self._number - self._taken

    @asynccontextmanager
    async def slot(self, rank: int) -> AsyncGenerator[None]:
        """A slot for as long as the context lasts."""
        async with self._freed:
            self._waiting[rank] += 1
            try:
                await self._freed.wait_for(lambda: self._open(rank))
            finally:
                self._waiting[rank] -= 1
                self._freed.notify_all()
            self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            # Nobody waits for the lock long: it is held between two awaits only.
            await asyncio.shield(self._tell())

    def _open(self, rank: int) -> bool:
        return self._taken < self._number and not any(self._waiting[:rank])

    async def _tell(self) -> None:
        async with self._freed:
            self._freed.notify_all()
