"""Orchestrators that share a NATS server know who of them is alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.lease_keeper import BUCKET, LeaseKeeper, open_leases
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings

SECONDS = 20


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[Settings]:
    async with EmbeddedNats(tmp_path) as server:
        address = server.address
        yield Settings(nats_url=address.url, nats_token=address.token, lease_seconds=1.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def test_those_who_are_there_see_each_other_and_notice_who_leaves(settings: Settings) -> None:
    async with open_leases(settings, anew=False) as first:
        assert first.alive() == {first.me}
        async with open_leases(settings, anew=False) as second:
            assert second.me != first.me
            assert second.alive() == {first.me, second.me}
            await until(lambda: second.me in first.alive())
        await until(lambda: first.alive() == {first.me})


async def test_one_that_died_is_gone_when_its_lease_is(settings: Settings) -> None:
    async with connect_log(settings, name="test") as log:
        store = await log.bucket(BUCKET, ttl_seconds=settings.lease_seconds)
        await store.put("replicas.dead", b"1")
        async with open_leases(settings, anew=False) as keeper:
            assert keeper.alive() == {keeper.me, "dead"}
            await until(lambda: keeper.alive() == {keeper.me})


async def test_whoever_has_just_started_the_server_need_not_wait_for_the_dead(settings: Settings) -> None:
    async with connect_log(settings, name="test") as log:
        store = await log.bucket(BUCKET, ttl_seconds=settings.lease_seconds)
        await store.put("replicas.dead", b"1")
        async with open_leases(settings, anew=True) as keeper:
            assert keeper.alive() == {keeper.me}


async def test_a_loop_that_is_blocked_loses_nothing(settings: Settings) -> None:
    """Renewals come from a thread of their own."""
    async with open_leases(settings, anew=False) as blocked, open_leases(settings, anew=False) as other:
        await asyncio.to_thread(_wait_for, other, blocked.me)
        stalled = asyncio.get_running_loop().time() + 2 * settings.lease_seconds
        while asyncio.get_running_loop().time() < stalled:
            pass
        assert blocked.me in other.alive()


async def test_nobody_is_alive_as_far_as_one_can_know_without_the_server(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server:
        address = server.address
        settings = Settings(nats_url=address.url, nats_token=address.token, lease_seconds=1.0)
        keeper = LeaseKeeper(settings, "alone", anew=False)
        await keeper.open()
        assert keeper.alive() == {"alone"}
    await until(lambda: not keeper.alive())
    await keeper.close()


def _wait_for(keeper: LeaseKeeper, name: str) -> None:
    while name not in keeper.alive():
        pass
