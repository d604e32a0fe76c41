"""What follows a source goes on where it can, and says so where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeAlias

import pytest
from structlog.testing import capture_logs

from swe_ai_fleet import following
from swe_ai_fleet.domain.errors import NotFound, Unavailable
from swe_ai_fleet.following import Follower

Told: TypeAlias = int | Exception | None


class Source:
    """Tells what it is given; an exception once."""

    def __init__(self, *told: Told) -> None:
        self.queue: asyncio.Queue[Told] = asyncio.Queue()
        self.asked: list[int] = []
        self.tell(*told)

    def tell(self, *told: Told) -> None:
        for one in told:
            self.queue.put_nowait(one)

    async def changes(self, position: int) -> AsyncGenerator[int | None, None]:
        self.asked.append(position)
        while True:
            told = await self.queue.get()
            if isinstance(told, Exception):
                raise told
            yield told


class View:
    """Keeps what it is told."""

    def __init__(self, source: Source) -> None:
        self.known: list[int] = []
        self.moved = asyncio.Event()
        self.follower = Follower("the source", source.changes, self.take, hint="begin anew")

    def take(self, change: int) -> int:
        assert change != 13
        self.known.append(change)
        self.moved.set()
        return change

    async def knows(self, *known: int) -> None:
        async with asyncio.timeout(5):
            while tuple(self.known) != known:
                self.moved.clear()
                await self.moved.wait()


async def ends(view: View) -> Unavailable:
    async with asyncio.timeout(5):
        while True:
            try:
                view.follower.check()
            except Unavailable as error:
                return error
            await asyncio.sleep(0)


async def test_it_starts_with_what_is_stored_and_goes_on() -> None:
    source = Source(1, 2, None)
    view = View(source)
    with pytest.raises(Unavailable):
        view.follower.check()
    await view.follower.start()
    assert (view.known, view.follower.position) == ([1, 2], 2)
    source.tell(5)
    await view.knows(1, 2, 5)
    view.follower.check()
    await view.follower.stop()
    with pytest.raises(Unavailable, match="not followed any more"):
        view.follower.check()


async def test_a_source_that_fails_is_asked_again_and_nothing_stale_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PAUSES", (0.0,))
    source = Source(1, None)
    view = View(source)
    await view.follower.start()
    source.tell(NotFound("gone"))
    fault = await ends(view)
    assert "gone" in fault.message
    assert "by itself" in fault.hint
    source.tell(Unavailable("away"), 2)
    await view.knows(1, 2)
    view.follower.check()
    assert source.asked == [1, 2, 2]
    await view.follower.stop()


async def test_a_bug_ends_it_and_is_told_at_once() -> None:
    source = Source(None)
    view = View(source)
    await view.follower.start()
    with capture_logs() as logs:
        source.tell(13, 14)
        fault = await ends(view)
    assert fault.hint == "begin anew"
    assert [(one["event"], one["log_level"]) for one in logs] == [("following.ended", "error")]
    assert view.known == []
    await view.follower.stop()


async def test_what_fails_before_it_has_caught_up_fails_the_start() -> None:
    with pytest.raises(NotFound, match="no such stream"):
        await View(Source(1, NotFound("no such stream"))).follower.start()


async def test_a_start_that_is_cancelled_leaves_nothing_running() -> None:
    view = View(Source(1))
    starting = asyncio.create_task(view.follower.start())
    await view.knows(1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert [task for task in asyncio.all_tasks() if task.get_name() == "the source"] == []
