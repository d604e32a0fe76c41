"""Waiting for an execution, with word of what happens meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.domain.event import ApprovalRequested
from swe_ai_fleet.watching.events import stored_event
from swe_ai_fleet.watching.narration import narrate
from swe_ai_fleet.watching.progress import Progress

MOST_NEWS = 20
_NEXT_TO_NOTHING = 0.001


class Waiting:
    """Follows an execution until it ends, waits for a person, or the time is over.

    Args:
        client: Of the fleet.
        tell: Called with the progress (0 to 100, rising) and a line for each thing that happens from now on.
    """

    def __init__(self, client: FleetClient, tell: Callable[[float, str], Awaitable[None]]) -> None:
        self._client = client
        self._tell = tell
        self._told = 0.0
        self._progress = Progress()
        self.percent = 0
        self.step = ""
        self.news: deque[str] = deque(maxlen=MOST_NEWS)

    async def wait(self, execution_id: str, *, seconds: float, until_approval: bool) -> None:
        """Wait. Raises CommandFault.

        Args:
            execution_id: Of the execution.
            seconds: At most.
            until_approval: Whether an approval that is asked for meanwhile ends it too.
        """
        now = await self._client.execution(execution_id)
        if now.pending_approvals and until_approval:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), aclosing(self._client.events(execution_id)) as events:
                async for event in events:
                    try:
                        stored = stored_event(event)
                    except ValueError:
                        # An event of a newer version, which cannot be described.
                        continue
                    if stored is None:
                        continue
                    self._progress.follow(stored)
                    self.percent, self.step = self._progress.percent, self._progress.step
                    if event.sequence <= now.last_sequence:
                        continue
                    if line := narrate(stored):
                        self.news.append(line)
                        self._told = max(float(self.percent), self._told + _NEXT_TO_NOTHING)
                        await self._tell(self._told, line)
                    if until_approval and isinstance(stored.event.body, ApprovalRequested):
                        return
