"""How much each tenant has stored, as the streams tell."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping

from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.storage import StoredPiece
from swe_ai_fleet.following import Follower

Pieces = Callable[[int], AsyncGenerator[StoredPiece | None, None]]
"""What a stream holds from a position on, without an end; None once everything older is told."""

_DAY = 86_400
_PATIENCE_SECONDS = 5.0
_HINT = "restart the orchestrator"


class StorageBook:
    """Sums by tenant what streams hold. An async context: inside, they are read in the background, then followed.

    Memory grows with tenants, days and places in use, not with what is stored.

    Args:
        streams: What to read, by name.
        kept_seconds: How old pieces become before the streams forget them; 0: they do not.
        clock: Seconds since 1970.
    """

    def __init__(
        self, streams: Mapping[str, Pieces], *, kept_seconds: float = 0.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._kept_days = int(kept_seconds // _DAY) if kept_seconds else 0
        self._clock = clock
        self._days: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._places: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._followers = [Follower(name, pieces, self.take, hint=_HINT) for name, pieces in streams.items()]
        self._reading: asyncio.Task[None] | None = None
        self._read = asyncio.Event()

    async def __aenter__(self) -> StorageBook:
        self._reading = asyncio.create_task(self._begin(), name="storage")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await asyncio.gather(*(follower.stop() for follower in self._followers))

    def take(self, piece: StoredPiece) -> int:
        """Count a piece; its position."""
        if not piece.place:
            self._days[piece.tenant][int(piece.at // _DAY)] += piece.bytes
        elif piece.bytes:
            self._places[piece.tenant][piece.place] = piece.bytes
        else:
            self._places[piece.tenant].pop(piece.place, None)
        return piece.sequence

    async def bytes_of(self, tenant: str) -> int:
        """What a tenant has stored. Raises Unavailable while that is not known."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._read.wait()
        except TimeoutError:
            raise Unavailable("what the tenant has stored is still being counted", hint="try again soon") from None
        for follower in self._followers:
            follower.check()
        return self._sum(tenant)

    def by_tenant(self) -> Mapping[str, int]:
        """What is known to be stored, of every tenant."""
        return {tenant: self._sum(tenant) for tenant in sorted({*self._days, *self._places})}

    def _sum(self, tenant: str) -> int:
        days = self._days[tenant]
        if self._kept_days:
            oldest = int(self._clock() // _DAY) - self._kept_days
            for day in [day for day in days if day < oldest]:
                del days[day]
        return days.total() + sum(self._places[tenant].values())

    async def _begin(self) -> None:
        await asyncio.gather(*(follower.start() for follower in self._followers))
        self._read.set()
