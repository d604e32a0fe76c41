"""What every key-value store does: in memory and on a real JetStream."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, cast

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, JetStreamKeyValue, NatsCredentials
from swe_ai_fleet.domain.errors import Fenced, InvalidRequest, Unavailable
from swe_ai_fleet.ports import KeyValue, KeyValueChange, KeyValueEntry
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.simulation.virtual_loop import on_virtual_time
from tests.tables import table


@pytest.fixture
async def jetstream(nats_server: EmbeddedNats) -> AsyncIterator[JetStream]:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=NatsCredentials(token=address.token), timeout=5.0) as opened:
        yield opened


@pytest.fixture(params=["memory", "jetstream"])
async def store(request: pytest.FixtureRequest, jetstream: JetStream) -> KeyValue:
    if request.param == "memory":
        return MemoryKeyValue()
    name = f"test-{uuid.uuid4().hex}"
    await jetstream.bucket(name)
    return await jetstream.bucket(name)


async def test_a_change_names_the_revision_it_knows(store: KeyValue) -> None:
    assert await store.get("a.b") is None
    first = await store.put("a.b", b"one", revision=0)
    with pytest.raises(Fenced):
        await store.put("a.b", b"rival", revision=0)
    second = await store.put("a.b", b"two", revision=first)
    with pytest.raises(Fenced):
        await store.put("a.b", b"two", revision=first)
    assert second > first and await store.get("a.b") == KeyValueEntry(key="a.b", value=b"two", revision=second)
    assert await store.put("a.b", b"three") > second
    await store.delete("a.b")
    await store.delete("a.b")
    assert await store.get("a.b") is None

    # Once it is removed it is nobody's: of many at once one wins.
    async def claim(name: bytes) -> bytes:
        try:
            await store.put("a.b", name, revision=0)
        except Fenced:
            return b""
        return name

    winners = [name for name in await asyncio.gather(*(claim(b"%d" % number) for number in range(6))) if name]
    assert len(winners) == 1 and winners == [entry.value for entry in await store.entries()]


async def test_entries_are_listed_by_key(store: KeyValue) -> None:
    assert await store.entries() == ()
    for key in ("council.qa", "council.dev", "other.x"):
        await store.put(key, key.encode())
    await store.delete("council.qa")
    await store.put("council.arch", b"a")
    assert [one.key for one in await store.entries("council.")] == ["council.arch", "council.dev"]
    assert len(await store.entries()) == 3


async def test_values_that_are_being_changed_are_listed_all_the_same(store: KeyValue) -> None:
    keys = ["a", "b", "c"]

    async def change(key: str) -> None:
        for number in range(80):
            await store.put(key, str(number).encode())
            await asyncio.sleep(0)

    for key in keys:
        await store.put(key, b"first")
    changing = asyncio.gather(*map(change, keys))
    while not changing.done():
        assert [entry.key for entry in await store.entries()] == keys
        await asyncio.sleep(0)
    assert {entry.value for entry in await store.entries()} == {b"79"}
    await store.delete("b")
    assert [entry.key for entry in await store.entries()] == ["a", "c"]


class ScriptedReading(JetStreamKeyValue):
    """A step is a pause, a change (`a=3`, `-a=4`; empty: all of the start is read) and the newest revision by then."""

    steps: Sequence[tuple[float, str, int]] = ()
    newest = 0

    async def changes(self, **_: object) -> AsyncGenerator[KeyValueChange | None, None]:
        for pause, text, newest in self.steps:
            await asyncio.sleep(pause)
            self.newest = newest
            key, _, revision = text.lstrip("-").partition("=")
            value = None if text.startswith("-") else revision.encode()
            yield KeyValueChange(key=key, value=value, revision=int(revision)) if text else None
        await asyncio.Event().wait()

    async def _newest(self) -> int:
        return self.newest


@table(
    ("steps", "found", "seconds"),
    [
        ([(4, "a=1", 3), (4, "b=2", 3), (4, "c=3", 3), (0, "", 3)], "1 2 3", 12.0),
        # What is replaced or removed meanwhile is read before the end, however much it is.
        ([(0, "a=1", 2), (0, "b=2", 2), (0, "", 4), (1, "-a=3", 4), (1, "b=4", 4)], "4", 2.0),
        ([(0, "", 30), *((0, f"k{at}={at}", 30) for at in range(1, 31))], " ".join(map(str, range(1, 31))), 0.0),
        ([(0, "", 1), *((0, f"a={at}", at + 1) for at in range(1, 90))], "20", 0.0),
        # What was the newest may have got too old, and then it never comes.
        ([(0, "a=1", 1), (0, "", 3), (1, "a=2", 2)], "2", 6.0),
        ([(0, "a=1", 1), (0, "", 3)], "could not be read to its end", 5.0),
    ],
)
def test_a_bucket_is_read_to_its_end_while_it_changes(steps: Any, found: str, seconds: float) -> None:
    async def read() -> tuple[str, float]:
        reader = ScriptedReading(cast("Any", None), "b", timeout=5.0)
        reader.steps = steps
        try:
            text = " ".join(map(str, sorted(entry.revision for entry in await reader.entries())))
        except Unavailable as fault:
            text = fault.message
        return text, asyncio.get_running_loop().time()

    text, ended_at = on_virtual_time(read())
    assert (text.rpartition(": b ")[2], ended_at) == (found, seconds)


async def test_changes_tell_the_last_of_each_key_in_order(store: KeyValue) -> None:
    await store.put("a", b"1")
    second = await store.put("b", b"2")
    await store.put("a", b"3")
    await store.delete("b")
    seen = [change async for change in store.changes()]
    assert [(one.key, one.value) for one in seen if one is not None] == [("a", b"3"), ("b", None)]
    assert [one.key async for one in store.changes(from_revision=second + 2) if one is not None] == ["b"]


async def test_changes_are_followed_as_they_come(store: KeyValue) -> None:
    first = await store.put("a", b"1")
    async with asyncio.timeout(10), aclosing(store.changes(follow=True)) as following:

        async def told() -> tuple[str, bytes | None, int] | None:
            change = await anext(following)
            return change and (change.key, change.value, change.revision)

        assert [await told(), await told()] == [("a", b"1", first), None]
        assert await store.put("b", b"2") == (found := await told() or ("", None, 0))[2]
        assert found[:2] == ("b", b"2")
        await store.delete("a")
        assert (await told() or ())[:2] == ("a", None)


@pytest.mark.parametrize("key", ["", "a b", "a..b", ".a", "a.", "*", ">", "ä"])
async def test_not_every_text_is_a_key(jetstream: JetStream, key: str) -> None:
    store = await jetstream.bucket("test-keys")
    with pytest.raises(InvalidRequest):
        await store.put(key, b"x")


async def test_values_with_a_time_to_live_vanish_unless_renewed(jetstream: JetStream) -> None:
    store = await jetstream.bucket(f"test-{uuid.uuid4().hex}", ttl_seconds=1.0)
    await store.put("gone", b"x")
    async with asyncio.timeout(10):
        while await store.get("gone") is not None:
            await store.put("kept", b"x")
            await asyncio.sleep(0.1)
    assert await store.get("kept") is not None
