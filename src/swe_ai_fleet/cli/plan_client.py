"""The fleet's plan sessions as a command sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from fleet.planning.v1 import planning_pb2 as pb
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from swe_ai_fleet.cli.client import START_HINT, fault_of_call
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.runtime.place import find_place
from swe_ai_fleet.settings import Settings

R = TypeVar("R", bound=Message)

_LOOK_SECONDS = 30.0
WORK_SECONDS = 900.0
"""More than any limit on a request; the server ends it before."""
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class PlanClient:
    """Calls to the plan sessions of one fleet. Raises CommandFault where it answers with a fault."""

    def __init__(self, channel: grpc.aio.Channel, *, address: str, token: str) -> None:
        self.address = address
        self._stub = cast("Any", PlanningServiceStub)(channel)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    async def execute(self, request: pb.ExecutePlanRequest) -> pb.ExecutePlanResponse:
        """Have an approach proposed."""
        return await self._call("ExecutePlan", request, pb.ExecutePlanResponse, WORK_SECONDS)

    async def decide(
        self, session_id: str, decision: str, adjustment: str = "", *, proposal: int = 0
    ) -> pb.ApproveApproachResponse:
        """Decide about an approach; `decision` is approved, rejected or adjusted. `proposal` 0: whichever waits."""
        request = pb.ApproveApproachRequest(
            session_id=session_id, decision=decision, adjustment=adjustment, proposal=proposal
        )
        return await self._call("ApproveApproach", request, pb.ApproveApproachResponse, WORK_SECONDS)

    async def go_on(self, session_id: str) -> pb.ContinuePlanResponse:
        """Have an approved approach carried out."""
        request = pb.ContinuePlanRequest(session_id=session_id)
        return await self._call("ContinuePlan", request, pb.ContinuePlanResponse, WORK_SECONDS)

    async def session(self, session_id: str) -> pb.PlanSession:
        """A session as it stands."""
        request = pb.GetPlanSessionRequest(session_id=session_id)
        return (await self._call("GetPlanSession", request, pb.GetPlanSessionResponse, _LOOK_SECONDS)).session

    async def sessions(self, *, page_size: int) -> Sequence[pb.PlanSession]:
        """The sessions that were worked on last."""
        request = pb.ListPlanSessionsRequest(page_size=page_size)
        return (await self._call("ListPlanSessions", request, pb.ListPlanSessionsResponse, _LOOK_SECONDS)).sessions

    async def _call(self, method: str, request: Message, kind: type[R], seconds: float) -> R:
        call = getattr(self._stub, method)(request, metadata=self._metadata, timeout=seconds)
        try:
            answer = await cast("Awaitable[object]", call)
        except grpc.aio.AioRpcError as error:
            raise fault_of_call(error, self.address) from error
        assert isinstance(answer, kind)
        return answer


@asynccontextmanager
async def plan_client(settings: Settings, *, server: str, token: str) -> AsyncGenerator[PlanClient, None]:
    """A client of the plan sessions of a running fleet. Raises CommandFault where there is none."""
    place = find_place(settings, server=server, token=token)
    if place is None:
        raise CommandFault(f"no fleet runs on {settings.home}", exit_code=Exit.UNAVAILABLE, hint=START_HINT)
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(place.address, options=options) as channel:
        yield PlanClient(channel, address=place.address, token=place.token)
