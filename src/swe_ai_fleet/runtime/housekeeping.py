"""Takes away, as long as a process lives, what its node needs no longer: at its start alone, that would gather."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from swe_ai_fleet.following import in_background

_FIRST_SECONDS, _LAST_SECONDS = 5.0, 3_600.0
_ROUNDS = 10
"""So often within the time that something is kept."""

_log = structlog.get_logger(__name__)


def pause_seconds(kept_seconds: float) -> float:
    """How long to wait between two rounds, for what is kept so long once nobody uses it; 0: for ever."""
    return min(max(kept_seconds / _ROUNDS, _FIRST_SECONDS), _LAST_SECONDS) if kept_seconds else _LAST_SECONDS


@asynccontextmanager
async def housekeeping(reap: Callable[[], Awaitable[object]], *, pause: float) -> AsyncGenerator[None]:
    """One round now, and one after each `pause` seconds until the context ends; a round that fails is logged."""
    await reap()
    async with in_background(_keep(reap, pause), name="housekeeping"):
        yield


async def _keep(reap: Callable[[], Awaitable[object]], pause: float) -> None:
    while True:
        await asyncio.sleep(pause)
        try:
            await reap()
        except OSError as error:
            _log.warning("housekeeping.failed", reason=str(error))
