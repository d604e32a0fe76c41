"""A plan that an earlier version proposed is approved and carried out by this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.planning.v1 import planning_pb2 as pb
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from tests.recorded_store import SESSION, STORES, serving_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.name)
async def test_it_is_carried_out(store: Path) -> None:
    async with serving_store(store) as site:
        plans, call = PlanningServiceStub(site.client.channel), site.client.call
        session = (await plans.GetPlanSession(pb.GetPlanSessionRequest(session_id=SESSION), **call)).session
        assert session.status == "awaiting_approval"
        await plans.ApproveApproach(pb.ApproveApproachRequest(session_id=SESSION, decision="approved"), **call)
        result = await plans.ContinuePlan(pb.ContinuePlanRequest(session_id=SESSION), **call)
        assert (result.status, result.results, result.error) == ("completed", "They come to 25.", "")
