"""What tenants spend in plan sessions counts towards their day."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swe_ai_fleet.domain.access import Quota, TenantRules
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.extensions.plans.opening import open_tenant_plans
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.meter import Meter
from swe_ai_fleet.orchestrator.quotas import Quotas
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from tests.scripted_fleet import execution_deps

ANSWERS = Script(conversations=(Conversation(predicate=lambda _: True, turns=(Turn(content="Well."),)),))


async def test_plans_use_up_the_day_of_their_tenant(tmp_path: Path) -> None:
    """What agents of plans say stands in the log, and is counted there and nowhere else."""
    log = MemoryLog()

    async def spent(tenant: str) -> int:
        return await meter.spent_today(tenant)

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
            await plans("small").execute_plan("Find out what is new.", session_id="s")
            usage = (await plans("small").session("s")).usage
        assert usage.model_calls > 0
        async with asyncio.timeout(10):
            while await spent("small") < usage.total_tokens:
                await asyncio.sleep(0.01)
        assert await spent("small") == usage.total_tokens > 0
        assert await quotas.check_tokens("another") == 1
        with pytest.raises(ResourceExhausted) as refused:
            await quotas.check_tokens("small")
    assert refused.value.field == "quota.tokens_per_day"
