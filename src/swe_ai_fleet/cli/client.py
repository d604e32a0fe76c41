"""Clients of a command: calls of a fleet's services by the contract's descriptors; their faults as command faults."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, TypeVar, cast
from uuid import UUID

import grpc
import grpc.aio
from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.options import caller_name
from swe_ai_fleet.cli.screen import CommandFault, Exit
from swe_ai_fleet.client_settings import ClientSettings
from swe_ai_fleet.runtime.channels import ChannelTls, find_context, named_field, open_channel, tls_fault

R = TypeVar("R", bound=Message)

START_HINT = "start one with `fleet up`, or say where one runs: FLEET_HOME, --server; `fleet run --local` needs none"
CALL_SECONDS = 60.0
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
    # A call cancelled on this side has no status: this one comes from a server that shuts down.
    grpc.StatusCode.CANCELLED: Exit.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Exit.STOPPED,
}


def fault_of_call(
    error: grpc.aio.AioRpcError, address: str, *, server: str = "fleet", start_hint: str = START_HINT
) -> CommandFault:
    """The fault of a command, from a call's status and its rich details."""
    code = error.code()
    exit_code = _STATUS_EXITS.get(code, Exit.NOT_ACCEPTED)
    message = error.details() or code.name.lower().replace("_", " ")
    field = named_field(error)
    hint = ""
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) and field is None:
        tls = tls_fault(error.details() or "")
        message = f"no {server} answers at {address}" + (f": {tls[0]}" if tls else "")
        hint = f"{tls[1] if tls else start_hint} (the call said: {error.details()})"
    elif code is grpc.StatusCode.UNAUTHENTICATED:
        hint = (
            "FLEET_TOKEN must hold a valid token; whoever runs the fleet replaces an expired one with "
            "`fleet access token rotate`, a revoked one with `fleet access token add`"
        )
    return CommandFault(message, exit_code=exit_code, field=field or "", hint=hint)


class Calls:
    """Calls methods by name, with the token. Raises CommandFault for a fault of the service.

    Args:
        token: The token of the calls; empty: none.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        address: str,
        token: str,
        caller: str = "",
        fault: Callable[[grpc.aio.AioRpcError, str], CommandFault] = fault_of_call,
    ) -> None:
        # The types of its methods are not known to a type checker.
        self._channel: Any = channel
        self._fault = fault
        self.address = address
        bearer = (("authorization", f"Bearer {token}"),) if token else ()
        self._metadata = (*bearer, ("fleet-caller", caller)) if caller else bearer

    async def unary(
        self, method: str, request: Message | Iterable[Message], kind: type[R], *, seconds: float = CALL_SECONDS
    ) -> R:
        """The answer of a method with a single answer, such as `GetContext`."""
        opened = self._channel.unary_unary if isinstance(request, Message) else self._channel.stream_unary
        stub = opened(_path(method, kind), _serialized, kind.FromString)
        try:
            return await stub(request, metadata=self._metadata, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise self._fault(error, self.address) from error

    async def stream(
        self, method: str, request: Message, kind: type[R], *, seconds: float | None = None
    ) -> AsyncGenerator[R, None]:
        """The answers of a streaming method; closing the generator ends the call."""
        stub = self._channel.unary_stream(_path(method, kind), _serialized, kind.FromString)
        call = stub(request, metadata=self._metadata, timeout=seconds)
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._fault(error, self.address) from error
        finally:
            call.cancel()


def _path(method: str, answer: type[Message]) -> str:
    """The path of a method, whose service is in the same file as its answer."""
    services = cast("Any", answer.DESCRIPTOR.file).services_by_name.values()
    return next(f"/{service.full_name}/{method}" for service in services if method in service.methods_by_name)


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def open_calls(address: str, tls: ChannelTls | None) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    """The channel of commands; nothing is sent yet. Without `tls` everything is sent as plain text."""
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
    return open_channel(address, tls, options=options)


SUBMIT_SECONDS = 600.0
"""Acceptance may clone a large repository first."""
UPLOAD_SECONDS = 3_600.0
_NOT_FOUND_HINTS = {
    "story_id": "`fleet context story STORY TITLE` begins one",
    "task_id": "`fleet context task STORY TASK TITLE` adds one to a story",
    "node": "nodes are such as story:S-1, task:T-1, execution:ID, file:REPOSITORY/PATH",
    "subject_id": "`fleet list` shows the executions, `fleet show ID` whether one has ended",
}


class FleetClient:
    """Calls to one orchestrator. Every method raises CommandFault for a fault of the server."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    @property
    def address(self) -> str:
        return self.calls.address

    async def submit(self, request: pb.SubmitTaskRequest) -> pb.SubmitTaskResponse:
        return await self.calls.unary("SubmitTask", request, pb.SubmitTaskResponse, seconds=SUBMIT_SECONDS)

    async def upload(self, pieces: Iterable[pb.UploadRepositoryRequest]) -> pb.RepoRef:
        """Send a bundle; returns the reference for requests."""
        return await self.calls.unary("UploadRepository", pieces, pb.RepoRef, seconds=UPLOAD_SECONDS)

    async def status(self, *, timeout_seconds: float = 10.0, include_fleet: bool = False) -> pb.GetStatusResponse:
        request = pb.GetStatusRequest(include_stats=True, include_fleet=include_fleet)
        return await self.calls.unary("GetStatus", request, pb.GetStatusResponse, seconds=timeout_seconds)

    async def executions(self, request: pb.ListExecutionsRequest) -> pb.ListExecutionsResponse:
        return await self.calls.unary("ListExecutions", request, pb.ListExecutionsResponse)

    async def execution(self, execution_id: str) -> pb.Execution:
        return (await self.execution_reply(execution_id)).execution

    async def execution_reply(self, execution_id: str) -> pb.GetExecutionResponse:
        """An execution, and the keys that verify its signatures."""
        request = pb.GetExecutionRequest(execution_id=execution_id)
        return await self.calls.unary("GetExecution", request, pb.GetExecutionResponse)

    async def cancel(self, execution_id: str, reason: str) -> pb.CancelExecutionResponse:
        request = pb.CancelExecutionRequest(execution_id=execution_id, reason=reason)
        return await self.calls.unary("CancelExecution", request, pb.CancelExecutionResponse)

    async def resolve(self, request: pb.ResolveApprovalRequest) -> pb.ResolveApprovalResponse:
        return await self.calls.unary("ResolveApproval", request, pb.ResolveApprovalResponse)

    async def councils(self, request: pb.ListCouncilsRequest) -> pb.ListCouncilsResponse:
        return await self.calls.unary("ListCouncils", request, pb.ListCouncilsResponse)

    def events(self, execution_id: str, *, include_text: bool = False) -> AsyncGenerator[pb.ExecutionEvent, None]:
        """An execution's events up to its end; with `include_text` also the text of models as it is generated."""
        request = pb.StreamExecutionRequest(execution_id=execution_id, include_text=include_text)
        return self.calls.stream("StreamExecution", request, pb.ExecutionEvent)

    async def recorded(self, execution: pb.Execution) -> AsyncGenerator[pb.ExecutionEvent, None]:
        """An execution's events up to the end of its log at the time of the look-up, whether it has ended or not."""
        async with aclosing(self.events(execution.execution_id)) as events:
            async for event in events:
                yield event
                if event.sequence >= execution.last_sequence:
                    return

    def orchestrate(self, request: pb.OrchestrateRequest) -> AsyncGenerator[pb.OrchestrationUpdate, None]:
        """Run a task; yields its updates as they happen, the last one with the final answer."""
        return self.calls.stream("StreamOrchestration", request, pb.OrchestrationUpdate)

    async def artifact(self, execution_id: str, digest: str) -> bytes:
        request = pb.GetArtifactRequest(execution_id=execution_id, digest=digest)
        parts = self.calls.stream("GetArtifact", request, pb.GetArtifactResponse, seconds=CALL_SECONDS)
        return b"".join([part.chunk async for part in parts])

    async def find(self, name: str) -> str:
        """The execution id for an execution id or a task id (then that of its newest execution)."""
        if is_execution_id(name):
            return name
        matches = await self.executions(pb.ListExecutionsRequest(task_id=name, page_size=1))
        if not matches.executions:
            raise CommandFault(f"no execution and no task has the id {name!r}", hint="see `fleet list`")
        return matches.executions[0].execution_id


Fleet = AbstractAsyncContextManager[FleetClient]
"""A client that the command opens itself, after other work."""


@asynccontextmanager
async def connect(address: str, token: str, *, tls: ChannelTls | None = None) -> AsyncGenerator[FleetClient, None]:
    """A client of the orchestrator at `host:port`, until the context ends. Nothing is sent yet.

    Without `tls` everything, the token included, is sent as plain text.
    """
    async with open_calls(address, tls) as channel:
        yield FleetClient(Calls(channel, address=address, token=token))


def is_execution_id(name: str) -> bool:
    """Whether a name is an execution's id; a plan session's id may be the same digits without hyphens."""
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


@asynccontextmanager
async def context_client(settings: ClientSettings, *, server: str, token: str) -> AsyncGenerator[Calls, None]:
    """Calls to the chosen context service, in this user's name. Raises CommandFault without one."""
    service = find_context(settings, server=server, token=token)
    if service is None:
        raise CommandFault(
            f"no context service runs on {settings.home}",
            exit_code=Exit.UNAVAILABLE,
            hint="start a fleet with `fleet up`, or name one with --server",
        )
    async with open_calls(service.address, service.tls) as channel:
        yield Calls(channel, address=service.address, token=service.token, caller=caller_name(), fault=_fault)


def _fault(error: grpc.aio.AioRpcError, address: str) -> CommandFault:
    start_hint = "start a fleet with `fleet up`, or name another one with --server"
    fault = fault_of_call(error, address, server="context service", start_hint=start_hint)
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED:
            fault.hint = "FLEET_CONTEXT_TOKEN must hold the token of that context service"
        case grpc.StatusCode.NOT_FOUND:
            fault.hint = _NOT_FOUND_HINTS.get(fault.field.rpartition(".")[2], fault.hint)
        case grpc.StatusCode.INVALID_ARGUMENT if fault.field == "namespaces":
            fault.hint = "name some with --namespace, or all of them with --everywhere"
        case _:
            pass
    return fault
