"""What a replica holds to be alive, and what its lease does while NATS is away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.ports import KeyValueEntry
from swe_ai_fleet.runtime import replicas
from swe_ai_fleet.runtime.replicas import LEASES_BUCKET, DrainTarget, LeaseKeeper, replica_name
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.confinement import until
from tests.simulation.virtual_loop import on_virtual_time


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


def keeper_on(monkeypatch: pytest.MonkeyPatch, store: MemoryKeyValue | None, *, seconds: float = 15.0) -> LeaseKeeper:
    """A keeper whose connection has a bucket of leases that end by themselves, or that nobody answers."""

    async def bucket(name: str, *, ttl_seconds: float) -> MemoryKeyValue | None:
        assert (name, ttl_seconds) == (LEASES_BUCKET, seconds)
        return store

    @asynccontextmanager
    async def connect(settings: Settings, *, name: str, timeout: float) -> AsyncIterator[SimpleNamespace]:
        assert timeout == seconds / 3
        if store is None:
            raise Unavailable("nobody answers")
        yield SimpleNamespace(bucket=bucket)

    monkeypatch.setattr(replicas, "connect_log", connect)
    return LeaseKeeper(Settings(lease_seconds=seconds), "me", anew=False)


class Counting(MemoryKeyValue):
    """A bucket that counts how often all of it is read."""

    reads = 0

    async def entries(self, prefix: str = "") -> tuple[KeyValueEntry, ...]:
        self.reads += 1
        return await super().entries(prefix)


async def test_who_is_alone_reads_the_leases_of_others_only_once_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Counting()
    keeper = keeper_on(monkeypatch, store)
    for _ in range(4):
        await keeper._renew(store)
    assert (store.reads, keeper.alive(), keeper.fresh) == (1, {"me"}, True)
    await store.put("replicas.other", b"1")
    await keeper._renew(store)
    assert (store.reads, keeper.alive()) == (2, {"me", "other"})
    await keeper._renew(store)
    assert store.reads == 3, "the other one's lease may have ended"


async def test_a_lease_that_is_missing_for_a_moment_is_nobodys_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(replicas, "time", SimpleNamespace(monotonic=lambda: now))
    store = MemoryKeyValue()
    keeper = keeper_on(monkeypatch, store)
    assert (keeper.alive(), keeper.failures, keeper.ended) == (frozenset(), 0, 0)
    await store.put("replicas.other", b"1")
    await keeper._renew(store)
    assert keeper.alive() == {"me", "other"}
    assert [entry.value for entry in await store.entries("replicas.me")] == [str(os.getpid()).encode()]
    await store.delete("replicas.other")
    # It counts from when it was last seen: a third of fifteen seconds.
    for later, alive, ended in ((4.9, {"me", "other"}, 0), (0.2, {"me"}, 1), (0.0, {"me"}, 1)):
        now += later
        await keeper._renew(store)
        assert (keeper.alive(), keeper.ended) == (alive, ended)
    for _ in range(6):
        now += 1.4
        await keeper._renew(store)
    keeper.rest(True)
    await keeper._renew(store)
    assert (await store.entries(), keeper.alive(), keeper.ended) == ((), {"me"}, 1)
    keeper.rest(False)
    await keeper._renew(store)
    # Who cannot ask for a whole lease knows nobody.
    for later, fresh in ((2.2, True), (0.1, False), (12.6, False)):
        now += later
        assert (keeper.fresh, keeper.alive()) == (fresh, {"me"})
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
    assert (keeper.failures, keeper.alive(), keeper._thread.daemon) == (0, {"me"}, True)
    store.away = True
    with capture_logs() as said:
        await until(lambda: keeper.failures >= 3)
        await until(lambda: not keeper.alive())
        store.away = False
        await until(lambda: keeper.alive() == {"me"})
    assert [line["reason"] for line in said] == ["gone"] * keeper.failures
    await keeper.close()
    assert await store.entries("replicas.") == ()
    # A lease that cannot be given back is left to expire.
    keeper = keeper_on(monkeypatch, store, seconds=1.0)
    await keeper.open()
    store.away = True
    with capture_logs() as said:
        await keeper.close()
    assert [entry.key for entry in await store.entries("replicas.")] == ["replicas.me"] and said[-1]["reason"] == "gone"


def test_a_name_says_host_and_process_and_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    host_name = SimpleNamespace(gethostname=lambda: "node_1.example." + "x" * 60)
    monkeypatch.setattr(replicas, "socket", host_name)
    names = {replica_name() for _ in range(20)}
    assert len(names) == 20
    for name in names:
        host, process, digits = name.rsplit("-", 2)
        assert (host, process) == (("node-1-example-" + "x" * 60)[:40], str(os.getpid()))
        assert len(digits) == 6


def test_a_drained_orchestrator_rests_once_nothing_is_at_work_or_the_time_is_over() -> None:
    async def play() -> None:
        said, store, me = list[object](), MemoryKeyValue(), (DrainTarget.ORCHESTRATOR, "me")
        dispatcher: Any = SimpleNamespace(at_work=True, let_go=lambda: said.append("let go"))
        lease: Any = SimpleNamespace(me="me", rest=said.append)

        async def seen(*, at_work: bool) -> tuple[bool, set[object]]:
            dispatcher.at_work = at_work
            said.clear()
            await asyncio.sleep(0.5)
            return dispatcher.drained(), set(said)

        await (drains := replicas.Drains(store)).follower.start()
        async with replicas.drained(drains, dispatcher, lease, seconds=2.0):
            assert await seen(at_work=True) == (False, {False}) and drains.empty
            for by in ("zoe", "another"):
                await drains.begin(*me, by=by)
            await store.put("node.x", b"?")
            assert await seen(at_work=True) == (True, {False}) and not drains.empty
            assert ((drain := drains.get(*me)) and drain.by, drains.names(DrainTarget.NODE)) == ("zoe", set())
            assert await seen(at_work=False) == (True, {"let go", True})
            await drains.undo(*me)
            assert await seen(at_work=True) == (False, {False})
            await drains.begin(*me, within=1e-9)
            assert await seen(at_work=True) == (True, {"let go", True})
            await drains.undo(*me)
            ends_at = asyncio.get_running_loop().time() + 2.0
        assert (asyncio.get_running_loop().time(), dispatcher.drained()) == (ends_at, True)

    on_virtual_time(play())
