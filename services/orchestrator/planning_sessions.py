"""The RPCs of `fleet.planning.v1.PlanningService`: convert, call, convert back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from fleet.planning.v1 import planning_pb2 as pb
from fleet.planning.v1 import planning_pb2_grpc
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceServicer
from services.errors import Context
from services.grpc_server import Service
from services.orchestrator.pages import page_of
from services.orchestrator.planning_messages import (
    card_message,
    decision_message,
    proposal_message,
    result_message,
    session_message,
)
from services.values import check_values
from swe_ai_fleet.agents.plan_session import LEASE_SECONDS, LEASES_BUCKET, PARTS_BUCKET, SESSIONS_BUCKET
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.runtime.chat_fleet import ExecutionsView
from swe_ai_fleet.runtime.plan_desk import PlanDesk
from swe_ai_fleet.runtime.plan_service import PlanBuckets, open_plans
from swe_ai_fleet.runtime.tool_services import secret_mask

if TYPE_CHECKING:
    from swe_ai_fleet.adapters.jetstream import JetStream
    from swe_ai_fleet.runtime.stack import Stack

SERVICE = pb.DESCRIPTOR.services_by_name["PlanningService"].full_name
PLANS_KEPT_SECONDS = 90 * 86_400.0
"""After the last request of a session."""
CALLER = "plan"


class PlanningServicer(PlanningServiceServicer):
    """Serves plan sessions.

    Args:
        desk: Who takes the requests.
        mask: Replaces secrets in what calls were made with and gave.
    """

    def __init__(self, desk: PlanDesk, *, mask: SecretMask) -> None:
        self._desk = desk
        self._mask = mask

    async def ExecutePlan(self, request: pb.ExecutePlanRequest, context: Context) -> pb.ExecutePlanResponse:
        check_values(request)
        answer = await self._desk.execute_plan(
            request.goal,
            tuple(request.selected_entities),
            request.session_id,
            repository=request.repository,
            ref=request.ref,
        )
        return proposal_message(answer)

    async def ApproveApproach(self, request: pb.ApproveApproachRequest, context: Context) -> pb.ApproveApproachResponse:
        check_values(request)
        answer = await self._desk.approve(
            request.session_id, request.decision, request.adjustment, proposal=request.proposal
        )
        return decision_message(answer)

    async def ContinuePlan(self, request: pb.ContinuePlanRequest, context: Context) -> pb.ContinuePlanResponse:
        check_values(request)
        return result_message(await self._desk.continue_plan(request.session_id))

    async def GetPlanSession(self, request: pb.GetPlanSessionRequest, context: Context) -> pb.GetPlanSessionResponse:
        check_values(request)
        # Asked first: a session that nobody works on any more is then read as it was left.
        working = await self._desk.working(request.session_id)
        session = await self._desk.session(request.session_id)
        return pb.GetPlanSessionResponse(session=session_message(session, self._mask, working=working))

    async def ListPlanSessions(
        self, request: pb.ListPlanSessionsRequest, context: Context
    ) -> pb.ListPlanSessionsResponse:
        check_values(request)
        found = await self._desk.sessions()
        shown, following = page_of(request, found, lambda card: (card.updated_at, card.session_id))
        return pb.ListPlanSessionsResponse(sessions=[card_message(card) for card in shown], next_page_token=following)


@asynccontextmanager
async def open_plan_service(stack: Stack) -> AsyncGenerator[Service]:
    """The plan sessions of a fleet as a service, until the context ends. Raises InvalidRequest, Unavailable."""
    view = ExecutionsView(stack.executions, tenant=DEFAULT_TENANT, caller=CALLER)
    async with open_plans(
        stack.settings,
        buckets=await plan_buckets(stack.log),
        memories=stack.context,
        recorder=stack.context,
        fleet=view,
        starter=view,
        repositories=stack.workspaces,
    ) as desk:
        yield planning_service(PlanningServicer(desk, mask=secret_mask(stack.settings)))


async def plan_buckets(log: JetStream, *, lease_seconds: float = LEASE_SECONDS) -> PlanBuckets:
    """The buckets of plan sessions, made where there are none. Raises Unavailable."""
    return PlanBuckets(
        sessions=await log.bucket(SESSIONS_BUCKET, ttl_seconds=PLANS_KEPT_SECONDS),
        parts=await log.bucket(PARTS_BUCKET, ttl_seconds=PLANS_KEPT_SECONDS),
        leases=await log.bucket(LEASES_BUCKET, ttl_seconds=lease_seconds),
        lease_seconds=lease_seconds,
    )


def planning_service(servicer: PlanningServicer) -> Service:
    """What a gRPC server needs to serve it."""
    add = cast("Any", planning_pb2_grpc).add_PlanningServiceServicer_to_server
    return Service(name=SERVICE, add=add, servicer=servicer)
