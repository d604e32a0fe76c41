"""What a replica holds to be alive, and what its lease does while NATS is away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.runtime import lease_keeper
from swe_ai_fleet.runtime.lease_keeper import BUCKET, LeaseKeeper, replica_name
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_key_value import MemoryKeyValue


class Faulty(MemoryKeyValue):
    """A bucket that is away while it is told to be."""

    away = False

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        if self.away:
            raise Unavailable("gone")
        return await super().put(key, value, revision=revision)

    async def delete(self, key: str) -> None:
        if self.away:
            raise Unavailable("gone")
        await super().delete(key)


class Server:
    """Stands in for a connection: the bucket of leases, or nobody."""

    def __init__(self, store: MemoryKeyValue | None) -> None:
        self.store = store
        self.asked: list[tuple[str, float]] = []

    @asynccontextmanager
    async def connect(self, settings: Settings, *, name: str, patience: float) -> AsyncIterator[Server]:
        if self.store is None:
            raise Unavailable("nobody answers")
        yield self

    async def bucket(self, name: str, *, ttl_seconds: float) -> MemoryKeyValue:
        assert self.store is not None
        self.asked.append((name, ttl_seconds))
        return self.store


def keeper_on(monkeypatch: pytest.MonkeyPatch, store: MemoryKeyValue | None, *, seconds: float = 15.0) -> LeaseKeeper:
    monkeypatch.setattr(lease_keeper, "connect_log", Server(store).connect)
    return LeaseKeeper(Settings(lease_seconds=seconds), "me", anew=False)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_lease_that_is_missing_for_a_moment_is_nobodys_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(lease_keeper, "time", SimpleNamespace(monotonic=lambda: now))
    store = MemoryKeyValue()
    keeper = keeper_on(monkeypatch, store)
    assert (keeper.alive(), keeper.failures, keeper.ended) == (frozenset(), 0, 0)
    await store.put("replicas.other", b"1")
    await keeper._renew(store)
    assert keeper.alive() == {"me", "other"}
    assert {entry.key: entry.value for entry in await store.entries("replicas.me")} == {
        "replicas.me": str(os.getpid()).encode()
    }
    await store.delete("replicas.other")
    now += 4.9
    await keeper._renew(store)
    assert (keeper.alive(), keeper.ended) == ({"me", "other"}, 0)
    # It counts from when it was last seen: a third of fifteen seconds.
    now += 0.2
    await keeper._renew(store)
    assert (keeper.alive(), keeper.ended) == ({"me"}, 1)
    await keeper._renew(store)
    assert keeper.ended == 1


async def test_who_cannot_ask_for_a_whole_lease_knows_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(lease_keeper, "time", SimpleNamespace(monotonic=lambda: now))
    store = MemoryKeyValue()
    keeper = keeper_on(monkeypatch, store)
    await keeper._renew(store)
    now += 14.9
    assert keeper.alive() == {"me"}
    now += 0.2
    assert keeper.alive() == frozenset()


async def test_a_server_that_is_away_at_the_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keeper_on(monkeypatch, None)
    with pytest.raises(Unavailable, match="nobody answers"):
        await keeper.open()
    assert keeper.alive() == frozenset()
    await keeper.close()


async def test_renewals_go_on_through_an_outage_and_each_that_failed_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Faulty()
    keeper = keeper_on(monkeypatch, store, seconds=1.0)
    await keeper.open()
    assert (keeper.failures, keeper.alive()) == (0, {"me"})
    store.away = True
    await until(lambda: keeper.failures >= 3)
    await until(lambda: not keeper.alive())
    store.away = False
    await until(lambda: keeper.alive() == {"me"})
    await keeper.close()
    assert await store.entries("replicas.") == ()


async def test_a_lease_that_cannot_be_given_back_is_left_to_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Faulty()
    keeper = keeper_on(monkeypatch, store, seconds=1.0)
    await keeper.open()
    store.away = True
    await keeper.close()
    assert [entry.key for entry in await store.entries("replicas.")] == ["replicas.me"]


async def test_leases_stand_in_one_bucket_and_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(MemoryKeyValue())
    monkeypatch.setattr(lease_keeper, "connect_log", server.connect)
    keeper = LeaseKeeper(Settings(lease_seconds=7.0), "me", anew=False)
    await keeper.open()
    await keeper.close()
    assert server.asked == [(BUCKET, 7.0)]


def test_a_name_says_host_and_process_and_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    host_name = SimpleNamespace(gethostname=lambda: "node_1.example." + "x" * 60)
    monkeypatch.setattr(lease_keeper, "socket", host_name)
    names = {replica_name() for _ in range(20)}
    assert len(names) == 20
    for name in names:
        host, process, digits = name.rsplit("-", 2)
        assert (host, process) == (("node-1-example-" + "x" * 60)[:40], str(os.getpid()))
        assert len(digits) == 6
