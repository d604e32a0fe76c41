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
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.confinement import until

Told: TypeAlias = int | Exception | None


class View:
    """Follows a source that tells what it is given (an exception once), and keeps what it is told."""

    def __init__(self, *told: Told) -> None:
        self.queue: asyncio.Queue[Told] = asyncio.Queue()
        self.asked: list[int] = []
        self.known: list[int] = []
        self.follower = Follower("the source", self.changes, self.take, hint="begin anew")
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

    def take(self, change: int) -> int:
        assert change != 13
        self.known.append(change)
        return change

    async def fault(self) -> Unavailable:
        async with asyncio.timeout(5):
            while True:
                try:
                    self.follower.check()
                except Unavailable as error:
                    return error
                await asyncio.sleep(0)


async def test_a_source_that_fails_is_asked_again_and_nothing_stale_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PAUSES", (0.0,))
    view = View(1, None)
    with pytest.raises(Unavailable):
        view.follower.check()
    await view.follower.start()
    assert (view.known, view.follower.position) == ([1], 1)
    view.tell(NotFound("gone"))
    fault = await view.fault()
    assert "gone" in fault.message and "automatically" in fault.hint
    view.tell(Unavailable("away"), 2)
    await until(lambda: view.known == [1, 2])
    view.follower.check()
    assert view.asked == [1, 2, 2]
    await view.follower.stop()
    with pytest.raises(Unavailable, match="not followed any more"):
        view.follower.check()


async def test_a_bug_ends_it_and_is_told_at_once() -> None:
    view = View(None)
    await view.follower.start()
    with capture_logs() as logs:
        view.tell(13, 14)
        assert (await view.fault()).hint == "begin anew"
    assert [(one["event"], one["log_level"]) for one in logs] == [("following.ended", "error")]
    assert view.known == []
    await view.follower.stop()


async def test_a_start_that_fails_or_is_cancelled_leaves_nothing_running() -> None:
    with pytest.raises(NotFound, match="no such stream"):
        await View(1, NotFound("no such stream")).follower.start()
    view = View(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await view.follower.start()
    assert view.known == [1]
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
    # What is left as it is is not written.
    assert await rewritten(store, "count", lambda _: None, name="the count") is None
    told = await asyncio.gather(*(rewritten(store, "count", one_more, name="the count") for _ in range(8)))
    kept = await store.get("count")
    assert kept is not None and kept.value == b"8" and kept in told
    assert sorted(int(entry.value) for entry in told if entry) == list(range(1, 9))
    assert await rewritten(store, "count", lambda _: None, name="the count") == kept == await store.get("count")


class BusyKeyValue(MemoryKeyValue):
    """Somebody else writes after each reading."""

    asked = 0

    async def get(self, key: str) -> KeyValueEntry | None:
        self.asked += 1
        entry = await super().get(key)
        await self.put(key, b"0")
        return entry


async def test_it_gives_up_where_others_are_faster_every_time() -> None:
    store = BusyKeyValue()
    with pytest.raises(Unavailable, match="the count is being changed too often"):
        await rewritten(store, "count", one_more, name="the count")
    assert 5 <= store.asked <= 50
    assert [entry.value for entry in await store.entries("")] == [b"0"]
