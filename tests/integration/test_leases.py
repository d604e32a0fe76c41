"""Orchestrators that share a NATS server know who of them is alive."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.runtime.replicas import LEASES_BUCKET, open_leases
from swe_ai_fleet.settings import Settings
from tests.confinement import until


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[Settings]:
    async with EmbeddedNats(tmp_path) as server:
        address = server.address
        yield Settings(nats_url=address.url, nats_token=address.token, lease_seconds=1.0)


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
        store = await log.bucket(LEASES_BUCKET, ttl_seconds=settings.lease_seconds)
        await store.put("replicas.dead", b"1")
        async with open_leases(settings, anew=False) as keeper:
            assert keeper.alive() == {keeper.me, "dead"}
            await until(lambda: keeper.alive() == {keeper.me})
        # Whoever has just started the server need not wait for the dead.
        await store.put("replicas.dead", b"1")
        async with open_leases(settings, anew=True) as keeper:
            assert keeper.alive() == {keeper.me}


async def test_a_loop_that_is_blocked_loses_nothing(settings: Settings) -> None:
    """Renewals come from a thread of their own."""
    async with open_leases(settings, anew=False) as blocked, open_leases(settings, anew=False) as other:
        await until(lambda: blocked.me in other.alive())
        time.sleep(2 * settings.lease_seconds)  # noqa: ASYNC251
        assert blocked.me in other.alive()
