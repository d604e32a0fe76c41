"""Sources that are followed through outages; values that several change at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeAlias

import pytest
from structlog.testing import capture_logs

from swe_ai_fleet import following
from swe_ai_fleet.domain.errors import NotFound, Unavailable
from swe_ai_fleet.following import Follower
from swe_ai_fleet.ports import KeyValueEntry
from swe_ai_fleet.rewriting import rewritten
from swe_ai_fleet.testing.memory_key_value import MemoryKeyValue

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


# --- a value that several change at once ---


class SlowKeyValue(MemoryKeyValue):
    """Others get their turn between a reading and a writing, as over a network."""

    async def get(self, key: str) -> KeyValueEntry | None:
        entry = await super().get(key)
        await asyncio.sleep(0)
        return entry


def one_more(entry: KeyValueEntry | None) -> bytes:
    return str(int(entry.value) + 1 if entry else 1).encode()


async def test_of_many_changes_at_once_none_is_lost() -> None:
    store = SlowKeyValue()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rewritten(store, "count", one_more, name="the count")) for _ in range(8)]
    told = [task.result() for task in tasks]
    kept = await store.get("count")
    assert kept is not None
    assert kept.value == b"8"
    assert sorted(int(entry.value) for entry in told if entry) == list(range(1, 9))
    assert kept in told


async def test_what_is_left_as_it_is_is_not_written() -> None:
    store = MemoryKeyValue()
    assert await rewritten(store, "count", lambda _: None, name="the count") is None
    await store.put("count", b"1")
    before = await store.get("count")
    assert await rewritten(store, "count", lambda _: None, name="the count") == before
    assert await store.get("count") == before


async def test_a_change_that_cannot_be_made_is_told_at_once() -> None:
    def refused(entry: KeyValueEntry | None) -> bytes:
        raise NotFound("there is no count")

    with pytest.raises(NotFound):
        await rewritten(MemoryKeyValue(), "count", refused, name="the count")


async def test_it_gives_up_where_others_are_faster_every_time() -> None:
    store = MemoryKeyValue()
    asked = 0

    class Busy(MemoryKeyValue):
        async def get(self, key: str) -> KeyValueEntry | None:
            nonlocal asked
            asked += 1
            entry = await store.get(key)
            await store.put(key, b"0")
            return entry

        async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
            return await store.put(key, value, revision=revision)

    with pytest.raises(Unavailable, match="the count is being changed by others all the time"):
        await rewritten(Busy(), "count", one_more, name="the count")
    assert 5 <= asked <= 50
    kept = await store.get("count")
    assert kept is not None
    assert kept.value == b"0"
