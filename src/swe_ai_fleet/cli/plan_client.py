"""The fleet's plan sessions as a command sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from fleet.planning.v1 import planning_pb2 as pb
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from swe_ai_fleet.cli.calls import Calls, fleet_calls
from swe_ai_fleet.settings import Settings

_LOOK_SECONDS = 30.0
WORK_SECONDS = 900.0
"""More than any limit on a request; the server ends it before."""


class PlanClient:
    """Calls to the plan sessions of one fleet. Raises CommandFault where it answers with a fault."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def execute(self, request: pb.ExecutePlanRequest) -> pb.ExecutePlanResponse:
        """Have an approach proposed."""
        return await self._calls.one("ExecutePlan", request, pb.ExecutePlanResponse, seconds=WORK_SECONDS)

    async def decide(
        self, session_id: str, decision: str, adjustment: str = "", *, proposal: int = 0
    ) -> pb.ApproveApproachResponse:
        """Decide about an approach; `decision` is approved, rejected or adjusted. `proposal` 0: whichever waits."""
        request = pb.ApproveApproachRequest(
            session_id=session_id, decision=decision, adjustment=adjustment, proposal=proposal
        )
        return await self._calls.one("ApproveApproach", request, pb.ApproveApproachResponse, seconds=WORK_SECONDS)

    async def go_on(self, session_id: str) -> pb.ContinuePlanResponse:
        """Have an approved approach carried out."""
        request = pb.ContinuePlanRequest(session_id=session_id)
        return await self._calls.one("ContinuePlan", request, pb.ContinuePlanResponse, seconds=WORK_SECONDS)

    async def session(self, session_id: str) -> pb.PlanSession:
        """A session as it stands."""
        request = pb.GetPlanSessionRequest(session_id=session_id)
        return (
            await self._calls.one("GetPlanSession", request, pb.GetPlanSessionResponse, seconds=_LOOK_SECONDS)
        ).session

    async def sessions(self, *, page_size: int) -> Sequence[pb.PlanSession]:
        """The sessions that were worked on last."""
        request = pb.ListPlanSessionsRequest(page_size=page_size)
        return (
            await self._calls.one("ListPlanSessions", request, pb.ListPlanSessionsResponse, seconds=_LOOK_SECONDS)
        ).sessions


@asynccontextmanager
async def plan_client(settings: Settings, *, server: str, token: str) -> AsyncGenerator[PlanClient, None]:
    """A client of the plan sessions of a running fleet. Raises CommandFault where there is none."""
    async with fleet_calls(PlanningServiceStub, settings, server=server, token=token) as calls:
        yield PlanClient(calls)
