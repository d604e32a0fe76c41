"""What tenants spend beside executions is one sum a day, whichever replica they talk to."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.runtime.spending import DAY_SECONDS, TenantSpending

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()


@pytest.fixture
async def bucket(nats_server: EmbeddedNats) -> AsyncIterator[KeyValue]:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=NatsCredentials(token=address.token)) as log:
        yield await log.bucket(f"spending-{uuid.uuid4().hex}", ttl_seconds=60)


async def test_replicas_that_count_at_once_come_to_one_sum_a_tenant_and_day(bucket: KeyValue) -> None:
    now = NOON
    replicas = [TenantSpending(bucket, clock=lambda: now) for _ in range(3)]
    await asyncio.gather(*(replica.add("small", 10) for replica in replicas for _ in range(4)))
    await replicas[0].add("other", 7)
    # What lost every race for the bucket is still owed, and comes with the next.
    for replica in replicas:
        await replica.add("small", 0)
    assert [await replica.today("small") for replica in replicas] == [120, 120, 120]
    assert await replicas[2].today("other") == 7
    now += DAY_SECONDS
    assert await replicas[1].today("small") == 0
