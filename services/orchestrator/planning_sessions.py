"""The RPCs of `fleet.planning.v1.PlanningService`: convert, call, convert back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from fleet.planning.v1 import planning_pb2 as pb
from fleet.planning.v1 import planning_pb2_grpc
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceServicer
from services.auth import principal, tenant
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
from swe_ai_fleet.agents.plan_session import LEASE_SECONDS, LEASES_BUCKET, PARTS_BUCKET, SESSIONS_BUCKET
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.runtime.chat_fleet import ExecutionsView
from swe_ai_fleet.runtime.plan_desk import PlanDesk
from swe_ai_fleet.runtime.plan_service import PlanBuckets, open_plan_desks
from swe_ai_fleet.runtime.tool_services import secret_mask

if TYPE_CHECKING:
    from swe_ai_fleet.adapters.jetstream import JetStream
    from swe_ai_fleet.runtime.stack import Stack

SERVICE = pb.DESCRIPTOR.services_by_name["PlanningService"].full_name
PLANS_KEPT_SECONDS = 90 * 86_400.0
"""After the last request of a session."""
CALLER = "plan"


async def _anybody(_: str) -> None:
    """Lets everybody have a model work."""


class PlanningServicer(PlanningServiceServicer):
    """Serves plan sessions.

    Args:
        desks: Who takes the requests of a tenant.
        mask: Replaces secrets in what calls were made with and gave.
        admit: Raises ResourceExhausted where a model may not work for a tenant now.
    """

    def __init__(
        self, desks: Callable[[str], PlanDesk], *, mask: SecretMask, admit: Callable[[str], Awaitable[None]] = _anybody
    ) -> None:
        self._desks = desks
        self._admit = admit
        self._mask = mask

    @property
    def _desk(self) -> PlanDesk:
        """That of the tenant who calls."""
        return self._desks(tenant())

    async def ExecutePlan(self, request: pb.ExecutePlanRequest, context: Context) -> pb.ExecutePlanResponse:
        await self._admit(tenant())
        answer = await self._desk.execute_plan(
            request.goal,
            tuple(request.selected_entities),
            request.session_id,
            repository=request.repository,
            ref=request.ref,
            by=principal().name,
        )
        return proposal_message(answer)

    async def ApproveApproach(self, request: pb.ApproveApproachRequest, context: Context) -> pb.ApproveApproachResponse:
        await self._admit(tenant())
        answer = await self._desk.approve(
            request.session_id,
            request.decision,
            request.adjustment,
            proposal=request.proposal,
            by=principal().name,
        )
        return decision_message(answer)

    async def ContinuePlan(self, request: pb.ContinuePlanRequest, context: Context) -> pb.ContinuePlanResponse:
        await self._admit(tenant())
        return result_message(await self._desk.continue_plan(request.session_id))

    async def GetPlanSession(self, request: pb.GetPlanSessionRequest, context: Context) -> pb.GetPlanSessionResponse:
        # Asked first: a session that nobody works on any more is then read as it was left.
        working = await self._desk.working(request.session_id)
        session = await self._desk.session(request.session_id)
        return pb.GetPlanSessionResponse(session=session_message(session, self._mask, working=working))

    async def ListPlanSessions(
        self, request: pb.ListPlanSessionsRequest, context: Context
    ) -> pb.ListPlanSessionsResponse:
        found = await self._desk.sessions()
        shown, following = page_of(request, found, lambda card: (card.updated_at, card.session_id))
        return pb.ListPlanSessionsResponse(sessions=[card_message(card) for card in shown], next_page_token=following)


@asynccontextmanager
async def open_plan_service(stack: Stack) -> AsyncGenerator[Service]:
    """The plan sessions of a fleet as a service, until the context ends. Raises InvalidRequest, Unavailable."""

    def view(tenant: str) -> ExecutionsView:
        return ExecutionsView(stack.executions, tenant=tenant, caller=CALLER, by=lambda: principal().name)

    async with open_plan_desks(
        stack.settings,
        buckets=await plan_buckets(stack.log),
        memories=stack.context,
        recorder=stack.context,
        fleet=view,
        starter=view,
        repositories=stack.workspaces,
        spending=stack.spending,
    ) as desks:
        yield planning_service(
            PlanningServicer(desks.of, mask=secret_mask(stack.settings), admit=stack.executions.check_tokens)
        )


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
