"""Whoever lost the Ray node it joined by ends, however that is found out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from swe_ai_fleet.runtime.local_ray import _look  # pyright: ignore[reportPrivateUsage]


def _gone() -> bool:
    return False


def _mute() -> bool:
    raise ConnectionError("the head does not answer")


@pytest.mark.parametrize("alive", [_gone, _mute])
async def test_a_node_that_is_gone_or_cannot_be_asked_for_is_told(alive: Callable[[], bool]) -> None:
    lost = asyncio.Event()
    await _look(alive, lost.set)
    assert lost.is_set()


async def test_nothing_is_told_of_a_node_that_lives() -> None:
    asked, lost = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def alive() -> bool:
        loop.call_soon_threadsafe(asked.set)
        return True

    looking = asyncio.create_task(_look(alive, lost.set))
    await asked.wait()
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    assert looking.cancelled()
    assert not lost.is_set()
