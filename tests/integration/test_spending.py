"""What tenants spend in plan sessions counts towards their day, whichever replica they talk to."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.domain.access import Quota, TenantRules
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.meter import Meter
from swe_ai_fleet.orchestrator.quotas import Quotas
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.runtime.plan_service import open_tenant_plans
from swe_ai_fleet.runtime.spending import DAY_SECONDS, TenantSpending
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from tests.scripted_fleet import execution_deps

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
ANSWERS = Script(conversations=(Conversation(predicate=lambda _: True, turns=(Turn(content="Well."),)),))


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


async def test_plans_use_up_the_day_of_their_tenant(bucket: KeyValue, tmp_path: Path) -> None:
    """What agents of plans say stands in the log, and is counted there and nowhere else."""
    spending, log = TenantSpending(bucket), MemoryLog()

    async def spent(tenant: str) -> int:
        return await meter.spent_today(tenant) + await spending.today(tenant)

    quotas = Quotas(rules=lambda tenant: TenantRules(tenant=tenant, quota=Quota(tokens_per_day=1)), spent=spent)
    async with (
        ScriptedModelServer(ANSWERS) as server,
        Meter(lambda start: log.everything(from_sequence=start, follow=True)) as meter,
    ):
        settings = Settings(home=tmp_path, model_url=server.url, model="scripted")
        async with (
            Executions(execution_deps(log)) as executions,
            open_tenant_plans(settings, executions=executions) as plans,
        ):
            assert await quotas.check_tokens("small") == 1
            await plans.of("small").execute_plan("Find out what is new.", session_id="s")
            usage = (await plans.of("small").session("s")).usage
        assert usage.model_calls > 0
        async with asyncio.timeout(10):
            while await spent("small") < usage.total_tokens:
                await asyncio.sleep(0.01)
        assert await spent("small") == usage.total_tokens > 0
        assert await quotas.check_tokens("another") == 1
        with pytest.raises(ResourceExhausted) as refused:
            await quotas.check_tokens("small")
    assert refused.value.field == "quota.tokens_per_day"
