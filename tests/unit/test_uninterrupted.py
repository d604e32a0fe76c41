"""What must come to its end does, and whoever was cancelled meanwhile hears of it."""

from __future__ import annotations

import asyncio

import pytest

from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from tests.tables import table


@table("fails", [False, True])
async def test_cancelled_again_and_again_it_ends_first_and_passes_the_cancellation_on(fails: bool) -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        ended.set()
        if fails:
            raise ValueError("nobody is left to hear it")

    async def caller() -> str:
        await uninterrupted(work())
        return "went on"

    task = asyncio.create_task(caller())
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
