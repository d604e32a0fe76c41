"""A value that several change at once: nobody's change is lost, and nobody tries for ever."""

from __future__ import annotations

import asyncio

import pytest

from swe_ai_fleet.domain.errors import NotFound, Unavailable
from swe_ai_fleet.ports import KeyValueEntry
from swe_ai_fleet.rewriting import rewritten
from swe_ai_fleet.testing.memory_key_value import MemoryKeyValue


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
