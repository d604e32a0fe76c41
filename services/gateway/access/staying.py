"""Streams that go on for hours end soon after what let their watcher in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.access.stay import CHECK_SECONDS


async def while_admitted(
    work: Awaitable[None], may_stay: Callable[[], Awaitable[bool]], *, seconds: float = CHECK_SECONDS
) -> bool:
    """Carry work out for as long as somebody may stay; whether it came to its own end.

    Args:
        work: Is cancelled, and waited for, where they may not.
        may_stay: Asked again and again.
        seconds: Between two questions.
    """
    working = asyncio.ensure_future(work)
    try:
        while True:
            await asyncio.wait((working,), timeout=seconds)
            if working.done():
                working.result()
                return True
            if not await may_stay():
                return False
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
