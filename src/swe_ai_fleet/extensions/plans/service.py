"""The RPCs of `fleet.planning.v1.PlanningService`, and plan sessions as its messages: convert, call, convert back."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf import json_format

from fleet.planning.v1 import planning_pb2 as pb
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceServicer
from services.auth import principal, tenant
from services.errors import Context
from services.grpc_server import Service, service_of
from services.pages import page_of
from swe_ai_fleet.contract import from_message, to_message
from swe_ai_fleet.domain.budget import RequestLimits
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.extensions.plans.opening import open_tenant_plans
from swe_ai_fleet.extensions.plans.requests import Approved, AwaitingApproval, PlanFailed, PlanRejected, PlanResult
from swe_ai_fleet.extensions.plans.session import PlanSession, SessionCard, ToolCallMade
from swe_ai_fleet.extensions.plans.sessions import PlanSessions
from swe_ai_fleet.extensions.plans.store import PARTS_BUCKET, SESSIONS_BUCKET
from swe_ai_fleet.ports import KeyValue, SecretMask
from swe_ai_fleet.runtime.execution_tools import ExecutionsView
from swe_ai_fleet.runtime.tool_services import secret_mask

if TYPE_CHECKING:
    from swe_ai_fleet.adapters.jetstream import JetStream
    from swe_ai_fleet.runtime.service_deps import ServiceDeps

MAX_CALLS_BYTES = 2 * 1024 * 1024
"""The most bytes of the calls in one reply; the oldest are left out."""
_NOT_IN_LISTS = (
    "reasoning",
    "memory_results",
    "tool_calls_made",
    "working",
    "repository",
    "ref",
    "rejection",
    "question",
)
PLANS_KEPT_SECONDS = 90 * 86_400.0
"""How long a session is kept after its last request."""


def proposal_message(answer: AwaitingApproval | PlanFailed) -> pb.ExecutePlanResponse:
    """The answer to a goal."""
    if isinstance(answer, PlanFailed):
        return pb.ExecutePlanResponse(
            status=answer.status, session_id=answer.session_id, error=well_formed(answer.error)
        )
    memory = _memory_message(answer.memory_results)
    return to_message(pb.ExecutePlanResponse, answer, memory_results=memory, error=None)


def decision_message(answer: Approved | AwaitingApproval | PlanRejected | PlanFailed) -> pb.ApproveApproachResponse:
    """The answer to a decision."""
    if isinstance(answer, AwaitingApproval):
        waits = (
            "The model asks something." if answer.question else "The approach was adjusted; it waits for a decision."
        )
        memory = _memory_message(answer.memory_results)
        return to_message(pb.ApproveApproachResponse, answer, message=waits, memory_results=memory, error=None)
    reply = pb.ApproveApproachResponse(status=answer.status, session_id=answer.session_id)
    if isinstance(answer, PlanFailed):
        reply.error = well_formed(answer.error)
    else:
        reply.message = well_formed(answer.message)
    return reply


def result_message(result: PlanResult) -> pb.ContinuePlanResponse:
    """The result of an approved plan."""
    return to_message(pb.ContinuePlanResponse, result, tool_calls_made=_call_messages(result.tool_calls_made))


def session_message(session: PlanSession, mask: SecretMask, *, working: bool) -> pb.PlanSession:
    """A session with all its fields."""
    return to_message(
        pb.PlanSession,
        session,
        memory_results=_memory_message(AwaitingApproval.of(session).memory_results),
        tool_calls_made=_call_messages(session.calls_made(mask)),
        iterations=session.card.iterations,
        working=working,
    )


def card_message(card: SessionCard) -> pb.PlanSession:
    """A session as a list shows it."""
    return to_message(pb.PlanSession, card, **dict.fromkeys(_NOT_IN_LISTS))


def _memory_message(results: Mapping[str, object]) -> pb.MemoryResults:
    text = well_formed(json.dumps(results, ensure_ascii=False))
    return json_format.Parse(text, pb.MemoryResults(), ignore_unknown_fields=True)


def _call_messages(calls: tuple[ToolCallMade, ...]) -> list[pb.ToolCallMade]:
    room, messages = MAX_CALLS_BYTES, list[pb.ToolCallMade]()
    for call in reversed(calls):
        message = to_message(pb.ToolCallMade, call)
        room -= message.ByteSize()
        if room < 0:
            break
        messages.append(message)
    return messages[::-1]


@dataclass(kw_only=True, eq=False)
class PlanningServicer(PlanningServiceServicer):
    """Serves plan sessions.

    Attributes:
        plans: Gives the plan sessions of a tenant.
        mask: Replaces secrets in arguments and results of calls.
        admit: Raises ResourceExhausted for a tenant whose models may not work now.
    """

    plans: Callable[[str], PlanSessions]
    mask: SecretMask
    admit: Callable[[str], Awaitable[object]]

    @property
    def _tenant_plans(self) -> PlanSessions:
        return self.plans(tenant())

    async def ExecutePlan(self, request: pb.ExecutePlanRequest, context: Context) -> pb.ExecutePlanResponse:
        await self.admit(tenant())
        answer = await self._tenant_plans.execute_plan(
            request.goal,
            tuple(request.selected_entities),
            request.session_id,
            repository=request.repository,
            ref=request.ref,
            limits=from_message(RequestLimits, request.limits),
            by=principal().name,
        )
        return proposal_message(answer)

    async def ApproveApproach(self, request: pb.ApproveApproachRequest, context: Context) -> pb.ApproveApproachResponse:
        await self.admit(tenant())
        answer = await self._tenant_plans.approve(
            request.session_id,
            request.decision,
            request.adjustment,
            proposal=request.proposal,
            limits=from_message(RequestLimits, request.limits),
            by=principal().name,
        )
        return decision_message(answer)

    async def ContinuePlan(self, request: pb.ContinuePlanRequest, context: Context) -> pb.ContinuePlanResponse:
        await self.admit(tenant())
        limits = from_message(RequestLimits, request.limits)
        return result_message(
            await self._tenant_plans.continue_plan(request.session_id, limits=limits, by=principal().name)
        )

    async def GetPlanSession(self, request: pb.GetPlanSessionRequest, context: Context) -> pb.GetPlanSessionResponse:
        session = await self._tenant_plans.session(request.session_id)
        message = session_message(session, self.mask, working=session.status.working)
        return pb.GetPlanSessionResponse(session=message)

    async def ListPlanSessions(
        self, request: pb.ListPlanSessionsRequest, context: Context
    ) -> pb.ListPlanSessionsResponse:
        cards = await self._tenant_plans.sessions()
        listed, following = page_of(request, cards, lambda card: (card.updated_at, card.session_id))
        return pb.ListPlanSessionsResponse(sessions=[card_message(card) for card in listed], next_page_token=following)


@asynccontextmanager
async def open_service(deps: ServiceDeps) -> AsyncGenerator[Service]:
    """The plan sessions of a fleet as a service, until the context ends. Raises InvalidRequest, Unavailable."""

    def view(tenant: str) -> ExecutionsView:
        return ExecutionsView(deps.executions, tenant=tenant, caller="plan")

    async with open_tenant_plans(
        deps.settings,
        executions=deps.executions,
        buckets=await plan_buckets(deps.log),
        context=deps.context,
        fleet=view,
        starter=view,
        repositories=deps.workspaces,
    ) as plans:
        yield service_of(
            PlanningServicer(plans=plans, mask=secret_mask(deps.settings), admit=deps.executions.check_tokens)
        )


async def plan_buckets(log: JetStream) -> tuple[KeyValue, KeyValue]:
    """The buckets of plan sessions and their parts, created if they do not exist. Raises Unavailable."""
    return (
        await log.bucket(SESSIONS_BUCKET, ttl_seconds=PLANS_KEPT_SECONDS),
        await log.bucket(PARTS_BUCKET, ttl_seconds=PLANS_KEPT_SECONDS),
    )
