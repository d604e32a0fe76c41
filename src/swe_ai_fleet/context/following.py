"""The graphs of all tenants as the log tells them, kept up to date."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from swe_ai_fleet.context.graph import ContextGraph
from swe_ai_fleet.domain.context import StoredChange
from swe_ai_fleet.domain.errors import Unavailable
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
        self._position = 0
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what is stored, then follow in the background. Raises NotFound (no such stream), Unavailable."""
        caught_up = asyncio.Event()
        self._following = asyncio.create_task(self._follow(caught_up), name="context graph")
        waiting = asyncio.create_task(caught_up.wait())
        try:
            await asyncio.wait([waiting, self._following], return_when=asyncio.FIRST_COMPLETED)
            if self._following.done():
                await self._following
        except BaseException:
            await self.stop()
            raise
        finally:
            waiting.cancel()

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def graph(self, tenant: str) -> ContextGraph:
        """What is known in a tenant. Raises Unavailable where it would grow old unnoticed."""
        if self._following is None or self._following.done():
            fault = _fault(self._following)
            raise Unavailable(
                f"the log of changes is not followed any more{f': {fault}' if fault else ''}",
                hint="restart the context service",
            ) from fault
        return self._graphs.get(tenant) or ContextGraph()

    def apply(self, stored: StoredChange) -> None:
        """Know a change at once, before it has come round through the log."""
        self._graphs.setdefault(stored.change.tenant, ContextGraph()).apply(stored)

    async def catch_up(self) -> None:
        """Know everything that stands in the log now, whoever wrote it. Raises Unavailable."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                # Changes come in order here as well, so none is taken in before what it builds on.
                async with aclosing(self._log.read(from_sequence=self._position + 1)) as changes:
                    async for stored in changes:
                        if stored is not None:
                            self.apply(stored)
        except TimeoutError:
            raise Unavailable("the log of changes does not answer", hint="is NATS running and reachable?") from None

    async def _follow(self, caught_up: asyncio.Event) -> None:
        async with aclosing(self._log.read(follow=True)) as changes:
            async for stored in changes:
                if stored is None:
                    caught_up.set()
                else:
                    self.apply(stored)
                    self._position = stored.sequence


def _fault(following: asyncio.Task[None] | None) -> BaseException | None:
    """Why following has ended, where it was not told to."""
    return None if following is None or following.cancelled() else following.exception()
