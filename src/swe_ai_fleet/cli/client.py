"""The orchestrator as a command sees it: typed calls over one channel, faults as commands tell them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast
from uuid import UUID

import grpc
import grpc.aio
from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from fleet.workflow.v1.workflow_pb2_grpc import WorkflowServiceStub
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.runtime.call_faults import named_field
from swe_ai_fleet.runtime.channels import ChannelTls, open_channel, tls_fault

R = TypeVar("R")

START_HINT = "start one with `fleet up`, or run in this process with --local"
SUBMIT_SECONDS = 600.0
"""Acceptance may clone a large repository first."""
UPLOAD_SECONDS = 3_600.0
_CALL_SECONDS = 60.0
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_STATUS_EXITS = {
    grpc.StatusCode.INVALID_ARGUMENT: Exit.USAGE,
    grpc.StatusCode.ALREADY_EXISTS: Exit.USAGE,
    grpc.StatusCode.NOT_FOUND: Exit.USAGE,
    grpc.StatusCode.FAILED_PRECONDITION: Exit.USAGE,
    grpc.StatusCode.UNAUTHENTICATED: Exit.USAGE,
    grpc.StatusCode.PERMISSION_DENIED: Exit.USAGE,
    grpc.StatusCode.OUT_OF_RANGE: Exit.USAGE,
    grpc.StatusCode.UNIMPLEMENTED: Exit.USAGE,
    grpc.StatusCode.UNAVAILABLE: Exit.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Exit.UNAVAILABLE,
    # Who cancels a call here gets no status of it: this is a server that goes away.
    grpc.StatusCode.CANCELLED: Exit.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Exit.STOPPED,
}


class FleetClient:
    """Calls to one orchestrator. Every method raises CommandFault where the server answers with a fault."""

    def __init__(self, channel: grpc.aio.Channel, *, address: str, token: str) -> None:
        self.address = address
        self._stub = cast("Any", OrchestratorServiceStub)(channel)
        self._workflows = cast("Any", WorkflowServiceStub)(channel)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    async def submit(self, request: pb.SubmitTaskRequest) -> pb.SubmitTaskResponse:
        call = self._stub.SubmitTask(request, metadata=self._metadata, timeout=SUBMIT_SECONDS)
        return await self._answer(call, pb.SubmitTaskResponse)

    async def upload(self, pieces: Iterable[pb.UploadRepositoryRequest]) -> pb.RepoRef:
        """Send a bundle; how requests name it."""
        call = self._stub.UploadRepository(pieces, metadata=self._metadata, timeout=UPLOAD_SECONDS)
        return await self._answer(call, pb.RepoRef)

    async def status(self, *, timeout_seconds: float = 10.0, include_fleet: bool = False) -> pb.GetStatusResponse:
        request = pb.GetStatusRequest(include_stats=True, include_fleet=include_fleet)
        call = self._stub.GetStatus(request, metadata=self._metadata, timeout=timeout_seconds)
        return await self._answer(call, pb.GetStatusResponse)

    async def metrics(self, request: pb.GetMetricsRequest) -> pb.GetMetricsResponse:
        call = self._stub.GetMetrics(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return await self._answer(call, pb.GetMetricsResponse)

    async def executions(self, request: pb.ListExecutionsRequest) -> pb.ListExecutionsResponse:
        call = self._stub.ListExecutions(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return await self._answer(call, pb.ListExecutionsResponse)

    async def execution(self, execution_id: str) -> pb.Execution:
        request = pb.GetExecutionRequest(execution_id=execution_id)
        call = self._stub.GetExecution(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return (await self._answer(call, pb.GetExecutionResponse)).execution

    async def cancel(self, execution_id: str, reason: str) -> pb.CancelExecutionResponse:
        request = pb.CancelExecutionRequest(execution_id=execution_id, reason=reason)
        call = self._stub.CancelExecution(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return await self._answer(call, pb.CancelExecutionResponse)

    async def resolve(self, request: pb.ResolveApprovalRequest) -> pb.ResolveApprovalResponse:
        call = self._stub.ResolveApproval(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return await self._answer(call, pb.ResolveApprovalResponse)

    async def councils(self, request: pb.ListCouncilsRequest) -> pb.ListCouncilsResponse:
        call = self._stub.ListCouncils(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return await self._answer(call, pb.ListCouncilsResponse)

    async def create_council(self, request: pb.CreateCouncilRequest) -> pb.CreateCouncilResponse:
        call = self._stub.CreateCouncil(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return await self._answer(call, pb.CreateCouncilResponse)

    async def delete_council(self, request: pb.DeleteCouncilRequest) -> pb.DeleteCouncilResponse:
        call = self._stub.DeleteCouncil(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return await self._answer(call, pb.DeleteCouncilResponse)

    async def register_agent(self, request: pb.RegisterAgentRequest) -> pb.RegisterAgentResponse:
        call = self._stub.RegisterAgent(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return await self._answer(call, pb.RegisterAgentResponse)

    async def unregister_agent(self, request: pb.UnregisterAgentRequest) -> pb.UnregisterAgentResponse:
        call = self._stub.UnregisterAgent(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        return await self._answer(call, pb.UnregisterAgentResponse)

    async def workflow(self, method: str, request: Message, kind: type[R], *, seconds: float = _CALL_SECONDS) -> R:
        """Call a method of the workflow service, such as `GetRun`."""
        return await self._answer(
            getattr(self._workflows, method)(request, metadata=self._metadata, timeout=seconds), kind
        )

    async def events(
        self, execution_id: str, *, from_sequence: int = 0, include_text: bool = False
    ) -> AsyncGenerator[pb.ExecutionEvent, None]:
        """An execution's events up to its end; on request also what models say while they say it."""
        request = pb.StreamExecutionRequest(
            execution_id=execution_id, from_sequence=from_sequence, include_text=include_text
        )
        call = cast("AsyncIterator[pb.ExecutionEvent]", self._stub.StreamExecution(request, metadata=self._metadata))
        with self._faults():
            async for event in call:
                yield event

    async def orchestrate(self, request: pb.OrchestrateRequest) -> AsyncGenerator[pb.OrchestrationUpdate, None]:
        """Run a task; its updates as they happen, the last one with the final answer."""
        call = cast(
            "AsyncIterator[pb.OrchestrationUpdate]", self._stub.StreamOrchestration(request, metadata=self._metadata)
        )
        with self._faults():
            async for update in call:
                yield update

    async def artifact(self, execution_id: str, digest: str) -> bytes:
        """A whole blob of an execution."""
        request = pb.GetArtifactRequest(execution_id=execution_id, digest=digest)
        call = self._stub.GetArtifact(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        content = bytearray()
        with self._faults():
            async for part in cast("AsyncIterator[pb.GetArtifactResponse]", call):
                content += part.chunk
        return bytes(content)

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

    async def _answer(self, call: Awaitable[object], kind: type[R]) -> R:
        with self._faults():
            answer = await call
        assert isinstance(answer, kind)
        return answer

    @contextmanager
    def _faults(self) -> Generator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise fault_of_call(error, self.address) from error


@asynccontextmanager
async def connect(address: str, token: str, *, tls: ChannelTls | None = None) -> AsyncGenerator[FleetClient, None]:
    """A client of the orchestrator at `host:port` for as long as the context lasts. Nothing is sent yet.

    Without `tls` what it sends, the token too, goes as plain text.
    """
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
    async with open_channel(address, tls, options=options) as channel:
        yield FleetClient(channel, address=address, token=token)


def fault_of_call(error: grpc.aio.AioRpcError, address: str) -> CommandFault:
    """A call's status, with its rich details, as a command tells it."""
    code = error.code()
    exit_code = _STATUS_EXITS.get(code, Exit.NOT_ACCEPTED)
    message = error.details() or code.name.lower().replace("_", " ")
    field = named_field(error)
    hint = ""
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) and field is None:
        unlike = tls_fault(error.details() or "")
        message = f"no fleet answers at {address}" + (f": {unlike[0]}" if unlike else "")
        hint = f"{unlike[1] if unlike else START_HINT} (the call said: {error.details()})"
    elif code is grpc.StatusCode.UNAUTHENTICATED:
        hint = "FLEET_TOKEN must hold the token that the server wrote into its fleet.json"
    return CommandFault(message, exit_code=exit_code, field=field or "", hint=hint)


def _is_execution_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
