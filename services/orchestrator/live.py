"""An execution's events with what its models say in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from swe_ai_fleet.domain.event import StoredEvent
from swe_ai_fleet.domain.live import TextDelta

WatchLive = Callable[[str, str], AsyncGenerator[TextDelta, None]]
"""Live text by tenant and execution."""


async def with_live_text(
    events: AsyncIterator[StoredEvent], live: AsyncGenerator[TextDelta, None]
) -> AsyncGenerator[StoredEvent | TextDelta, None]:
    """Both as they come, until the events end. A fault of the events is raised."""
    async with aclosing(live) as texts:
        sources: dict[asyncio.Task[StoredEvent | TextDelta | None], AsyncIterator[StoredEvent | TextDelta]] = {}

        def ask(source: AsyncIterator[StoredEvent | TextDelta]) -> None:
            sources[asyncio.create_task(_next(source))] = source

        ask(events)
        ask(texts)
        try:
            while True:
                done, _ = await asyncio.wait(sources, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    source, value = sources.pop(task), task.result()
                    if value is None:
                        if source is events:
                            return
                        continue
                    yield value
                    ask(source)
        finally:
            for task in sources:
                task.cancel()
            await asyncio.gather(*sources, return_exceptions=True)


async def _next(source: AsyncIterator[StoredEvent | TextDelta]) -> StoredEvent | TextDelta | None:
    return await anext(source, None)
