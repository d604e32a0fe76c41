"""The gRPC services of a fleet as commands call them: by the contract's own descriptors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.runtime.channels import ChannelTls, named_field, open_channel, tls_fault

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
    # Who cancels a call here gets no status of it: this is a server that goes away.
    grpc.StatusCode.CANCELLED: Exit.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Exit.STOPPED,
}


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
        hint = (
            "FLEET_TOKEN must hold a valid token; whoever runs the fleet replaces an expired one with "
            "`fleet access token rotate`, a revoked one with `fleet access token add`"
        )
    return CommandFault(message, exit_code=exit_code, field=field or "", hint=hint)


class Calls:
    """Calls methods by name, with the token. Raises CommandFault where the service answers with a fault.

    Args:
        channel: Leads to the fleet.
        address: Of the fleet, for faults to name.
        token: What callers must show; empty: nothing.
        caller: Who is said to call, where that is kept.
        fault: How a call's status is told.
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
        # Its methods are typed by nothing but what they are given.
        self._channel: Any = channel
        self._fault = fault
        self.address = address
        bearer = (("authorization", f"Bearer {token}"),) if token else ()
        self._metadata = (*bearer, ("fleet-caller", caller)) if caller else bearer

    async def unary(
        self, method: str, request: Message | Iterable[Message], kind: type[R], *, seconds: float = CALL_SECONDS
    ) -> R:
        """The answer of a method that gives one, such as `GetContext`."""
        opened = self._channel.unary_unary if isinstance(request, Message) else self._channel.stream_unary
        stub = opened(_path(method, kind), _serialized, kind.FromString)
        try:
            return await stub(request, metadata=self._metadata, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise self._fault(error, self.address) from error

    async def stream(
        self, method: str, request: Message, kind: type[R], *, seconds: float | None = None
    ) -> AsyncGenerator[R, None]:
        """The answers of a method that streams them; closing the generator ends the call."""
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
    """Where a method is called: it is in the file that has its answer."""
    services = cast("Any", answer.DESCRIPTOR.file).services_by_name.values()
    return next(f"/{service.full_name}/{method}" for service in services if method in service.methods_by_name)


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def open_calls(address: str, tls: ChannelTls | None) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    """The channel that commands call over; nothing is sent yet. Without `tls` what is sent goes as plain text."""
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
    return open_channel(address, tls, options=options)
