"""The orchestrator as a command sees it: typed calls over one channel, faults as commands tell them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, TypeVar, cast
from uuid import UUID

import grpc
import grpc.aio
from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from fleet.workflow.v1.workflow_pb2_grpc import WorkflowServiceStub
from swe_ai_fleet.cli.calls import CALL_SECONDS, Calls, open_calls
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.runtime.channels import ChannelTls

R = TypeVar("R", bound=Message)

SUBMIT_SECONDS = 600.0
"""Acceptance may clone a large repository first."""
UPLOAD_SECONDS = 3_600.0


class FleetClient:
    """Calls to one orchestrator. Every method raises CommandFault where the server answers with a fault."""

    def __init__(self, channel: grpc.aio.Channel, *, address: str, token: str) -> None:
        self.address = address
        self._calls = Calls(cast("Any", OrchestratorServiceStub), channel, address=address, token=token)
        self._workflows = Calls(cast("Any", WorkflowServiceStub), channel, address=address, token=token)

    async def submit(self, request: pb.SubmitTaskRequest) -> pb.SubmitTaskResponse:
        return await self._calls.one("SubmitTask", request, pb.SubmitTaskResponse, seconds=SUBMIT_SECONDS)

    async def upload(self, pieces: Iterable[pb.UploadRepositoryRequest]) -> pb.RepoRef:
        """Send a bundle; how requests name it."""
        return await self._calls.one("UploadRepository", pieces, pb.RepoRef, seconds=UPLOAD_SECONDS)

    async def status(self, *, timeout_seconds: float = 10.0, include_fleet: bool = False) -> pb.GetStatusResponse:
        request = pb.GetStatusRequest(include_stats=True, include_fleet=include_fleet)
        return await self._calls.one("GetStatus", request, pb.GetStatusResponse, seconds=timeout_seconds)

    async def metrics(self, request: pb.GetMetricsRequest) -> pb.GetMetricsResponse:
        return await self._calls.one("GetMetrics", request, pb.GetMetricsResponse)

    async def executions(self, request: pb.ListExecutionsRequest) -> pb.ListExecutionsResponse:
        return await self._calls.one("ListExecutions", request, pb.ListExecutionsResponse)

    async def execution(self, execution_id: str) -> pb.Execution:
        return (await self.answered(execution_id)).execution

    async def answered(self, execution_id: str) -> pb.GetExecutionResponse:
        """An execution, and the keys that signatures about it count by."""
        request = pb.GetExecutionRequest(execution_id=execution_id)
        return await self._calls.one("GetExecution", request, pb.GetExecutionResponse)

    async def cancel(self, execution_id: str, reason: str) -> pb.CancelExecutionResponse:
        request = pb.CancelExecutionRequest(execution_id=execution_id, reason=reason)
        return await self._calls.one("CancelExecution", request, pb.CancelExecutionResponse)

    async def resolve(self, request: pb.ResolveApprovalRequest) -> pb.ResolveApprovalResponse:
        return await self._calls.one("ResolveApproval", request, pb.ResolveApprovalResponse)

    async def deliver(self, request: pb.DeliverCandidateRequest) -> pb.DeliverCandidateResponse:
        return await self._calls.one("DeliverCandidate", request, pb.DeliverCandidateResponse, seconds=SUBMIT_SECONDS)

    async def councils(self, request: pb.ListCouncilsRequest) -> pb.ListCouncilsResponse:
        return await self._calls.one("ListCouncils", request, pb.ListCouncilsResponse)

    async def create_council(self, request: pb.CreateCouncilRequest) -> pb.CreateCouncilResponse:
        return await self._calls.one("CreateCouncil", request, pb.CreateCouncilResponse)

    async def delete_council(self, request: pb.DeleteCouncilRequest) -> pb.DeleteCouncilResponse:
        return await self._calls.one("DeleteCouncil", request, pb.DeleteCouncilResponse)

    async def register_agent(self, request: pb.RegisterAgentRequest) -> pb.RegisterAgentResponse:
        return await self._calls.one("RegisterAgent", request, pb.RegisterAgentResponse)

    async def unregister_agent(self, request: pb.UnregisterAgentRequest) -> pb.UnregisterAgentResponse:
        return await self._calls.one("UnregisterAgent", request, pb.UnregisterAgentResponse)

    async def workflow(self, method: str, request: Message, kind: type[R], *, seconds: float = CALL_SECONDS) -> R:
        """Call a method of the workflow service, such as `GetRun`."""
        return await self._workflows.one(method, request, kind, seconds=seconds)

    def events(
        self, execution_id: str, *, from_sequence: int = 0, include_text: bool = False
    ) -> AsyncGenerator[pb.ExecutionEvent, None]:
        """An execution's events up to its end; on request also what models say while they say it."""
        request = pb.StreamExecutionRequest(
            execution_id=execution_id, from_sequence=from_sequence, include_text=include_text
        )
        return self._calls.stream("StreamExecution", request, pb.ExecutionEvent)

    async def recorded(self, execution: pb.Execution) -> AsyncGenerator[pb.ExecutionEvent, None]:
        """An execution's events as far as its log went when it was looked up, whether it has ended or not."""
        async with aclosing(self.events(execution.execution_id)) as events:
            async for event in events:
                yield event
                if event.sequence >= execution.last_sequence:
                    return

    def orchestrate(self, request: pb.OrchestrateRequest) -> AsyncGenerator[pb.OrchestrationUpdate, None]:
        """Run a task; its updates as they happen, the last one with the final answer."""
        return self._calls.stream("StreamOrchestration", request, pb.OrchestrationUpdate)

    async def artifact(self, execution_id: str, digest: str) -> bytes:
        """A whole blob of an execution."""
        request = pb.GetArtifactRequest(execution_id=execution_id, digest=digest)
        parts = self._calls.stream("GetArtifact", request, pb.GetArtifactResponse, seconds=CALL_SECONDS)
        return b"".join([part.chunk async for part in parts])

    async def find(self, name: str) -> str:
        """The execution id behind an execution id or a task id (then that of its newest execution)."""
        if _is_execution_id(name):
            return name
        found = await self.executions(pb.ListExecutionsRequest(task_id=name, page_size=1))
        if not found.executions:
            raise CommandFault(
                f"no execution and no task has the id {name!r}", exit_code=Exit.USAGE, hint="see `fleet list`"
            )
        return found.executions[0].execution_id


Fleet = AbstractAsyncContextManager[FleetClient]
"""A client that is still to be opened, by commands that first see to something else."""


@asynccontextmanager
async def connect(address: str, token: str, *, tls: ChannelTls | None = None) -> AsyncGenerator[FleetClient, None]:
    """A client of the orchestrator at `host:port` for as long as the context lasts. Nothing is sent yet.

    Without `tls` what it sends, the token too, goes as plain text.
    """
    async with open_calls(address, tls) as channel:
        yield FleetClient(channel, address=address, token=token)


def _is_execution_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
