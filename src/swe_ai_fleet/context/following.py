"""The graphs of all tenants as the log tells them, kept up to date."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from swe_ai_fleet.context.graph import ContextGraph
from swe_ai_fleet.domain.context import StoredChange
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.following import Follower
from swe_ai_fleet.ports import ChangeLog

_PATIENCE_SECONDS = 5.0


class GraphFollower:
    """Follows a log of changes. Restarted, it reads all of it again: there is nothing else to lose.

    Args:
        log: What to follow.
    """

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._graphs: dict[str, ContextGraph] = {}
        self._following = Follower(
            "the log of changes",
            lambda position: log.read(from_sequence=position, follow=True),
            self._take,
            hint="restart the context service",
        )

    async def start(self) -> None:
        """Read what is stored, then follow in the background. Raises NotFound (no such stream), Unavailable."""
        await self._following.start()

    async def stop(self) -> None:
        """Follow no longer."""
        await self._following.stop()

    def graph(self, tenant: str) -> ContextGraph:
        """What is known in a tenant. Raises Unavailable where it would grow old unnoticed."""
        self._following.check()
        return self._graphs.get(tenant) or ContextGraph()

    def apply(self, stored: StoredChange) -> None:
        """Know a change at once, before it has come round through the log."""
        self._graphs.setdefault(stored.change.tenant, ContextGraph()).apply(stored)

    async def catch_up(self) -> None:
        """Know everything that stands in the log now, whoever wrote it. Raises Unavailable."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                # Changes come in order here as well, so none is taken in before what it builds on.
                async with aclosing(self._log.read(from_sequence=self._following.position + 1)) as changes:
                    async for stored in changes:
                        if stored is not None:
                            self.apply(stored)
        except TimeoutError:
            raise Unavailable("the log of changes does not answer", hint="is NATS running and reachable?") from None

    def _take(self, stored: StoredChange) -> int:
        self.apply(stored)
        return stored.sequence
