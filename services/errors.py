"""Faults for clients: a gRPC status with `google.rpc` details."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, cast

import grpc
import grpc.aio
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from services.values import check_values
from swe_ai_fleet.contract import ERROR_DOMAIN
from swe_ai_fleet.domain.errors import (
    AgentLost,
    AlreadyExists,
    Fenced,
    FleetError,
    InternalFault,
    InvalidRequest,
    ModelError,
    ModelUnavailable,
    NotFound,
    PatchRejected,
    PermissionDenied,
    PreconditionFailed,
    ResourceExhausted,
    Unavailable,
)

# Status and details travel in a header block of which clients take 8 KiB: percent-encoded once, in base64 once.
MAX_MESSAGE_BYTES = 800
MAX_FIELD_BYTES = 200
MAX_HINT_BYTES = 300

_log = structlog.get_logger()

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
    Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]
else:
    # Only the type stubs know these as generic.
    Handler, Context, Interceptor = grpc.RpcMethodHandler, grpc.aio.ServicerContext, grpc.aio.ServerInterceptor
    Continuation = Callable


class NotAvailable(FleetError):
    """A part of the contract that this server does not implement yet; `field` names the field that asked for it."""


class Unauthenticated(FleetError):
    """The caller has no valid credentials."""


_CODES: dict[type[FleetError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    PreconditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    PatchRejected: grpc.StatusCode.FAILED_PRECONDITION,
    ModelError: grpc.StatusCode.FAILED_PRECONDITION,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    ModelUnavailable: grpc.StatusCode.UNAVAILABLE,
    AgentLost: grpc.StatusCode.UNAVAILABLE,
    Fenced: grpc.StatusCode.UNAVAILABLE,
    NotAvailable: grpc.StatusCode.UNIMPLEMENTED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    InternalFault: grpc.StatusCode.INTERNAL,
}
RETRY_SECONDS = {grpc.StatusCode.UNAVAILABLE: 1, grpc.StatusCode.RESOURCE_EXHAUSTED: 5}


def status_code(error: FleetError) -> grpc.StatusCode:
    """The code of a fault; of an unknown kind of fault, that of the nearest kind it derives from."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), grpc.StatusCode.UNKNOWN)


def status(error: FleetError) -> status_pb2.Status:
    """A fault as `google.rpc.Status` with ErrorInfo, and where they apply BadRequest and RetryInfo."""
    code = status_code(error)
    field, hint = _cut(error.field, MAX_FIELD_BYTES), _cut(error.hint, MAX_HINT_BYTES)
    details: list[Message] = [
        error_details_pb2.ErrorInfo(
            reason=re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).upper(),
            domain=ERROR_DOMAIN,
            metadata={name: text for name, text in (("field", field), ("hint", hint)) if text},
        )
    ]
    if field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=field, description=_cut(str(error), MAX_MESSAGE_BYTES)
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if code in RETRY_SECONDS:
        delay = duration_pb2.Duration(seconds=RETRY_SECONDS[code])
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return _status(code, str(error), details)


def _status(code: grpc.StatusCode, message: str, details: list[Message]) -> status_pb2.Status:
    packed: list[any_pb2.Any] = []
    for detail in details:
        wrapper = any_pb2.Any()
        wrapper.Pack(detail)
        packed.append(wrapper)
    number = cast("tuple[int, str]", code.value)[0]
    return status_pb2.Status(code=number, message=_cut(message, MAX_MESSAGE_BYTES), details=packed)


async def abort(context: Context, ending: status_pb2.Status) -> NoReturn:
    """End a call with a status and its details."""
    aborted = rpc_status.to_status(ending)
    await context.abort(aborted.code, aborted.details, aborted.trailing_metadata or ())
    raise AssertionError("abort does not return")


class ErrorInterceptor(Interceptor):
    """Turns what a call raises into its status. A bug of ours becomes INTERNAL and is logged here, once."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = cast("Handler | None", await continuation(handler_call_details))
        method = str(handler_call_details.method)
        return within(
            handler, lambda context: _reporting_errors(context, method), take=_checked, read=_noting_what_is_none
        )


def reshaped(
    handler: Handler | None,
    call: Callable[[Any], Any],
    stream: Callable[[Any], Any],
    *,
    read: Callable[[Any], Any] = lambda deserializer: deserializer,
) -> Handler:
    """A method's handler around another behaviour.

    Args:
        handler: The method's handler; None where there is no such method, and then so is the result.
        call: Wraps a behaviour that is awaited.
        stream: Wraps one that is an async generator.
        read: Wraps what makes a message of bytes.
    """
    if handler is None:
        return cast("Handler", None)
    sent, answered = (("unary", "stream")[many] for many in (handler.request_streaming, handler.response_streaming))
    shape = f"{sent}_{answered}"
    behaviour: Any = getattr(handler, shape)
    wrapped = (stream if inspect.isasyncgenfunction(behaviour) else call)(behaviour)
    make: Any = getattr(grpc, f"{shape}_rpc_method_handler")
    parts = cast("Any", handler)
    return cast("Handler", make(wrapped, read(parts.request_deserializer), parts.response_serializer))


def within(
    handler: Handler | None,
    around: Callable[[Context], AbstractAsyncContextManager[None]],
    *,
    take: Callable[[Any], Any] = lambda request: request,
    read: Callable[[Any], Any] = lambda deserializer: deserializer,
) -> Handler:
    """A method's handler whose calls run inside a context; `take` makes of a request what they get, inside too."""

    def call(behaviour: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def called(request: Any, context: Context) -> Any:
            async with around(context):
                return await behaviour(take(request), context)

        return called

    def stream(
        behaviour: Callable[[Any, Context], AsyncGenerator[Any, None]],
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def streamed(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            async with around(context), aclosing(behaviour(take(request), context)) as replies:
                async for reply in replies:
                    yield reply

        return streamed

    return reshaped(handler, call, stream, read=read)


class _Malformed:
    """Stands for a malformed request: gRPC would report a fault of its reader as a fault of the server."""


def _noting_what_is_none(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserializer(data)
        except DecodeError:
            return _Malformed()

    return read


def _checked(request: Any) -> Any:
    """The request, or the pieces of one. Raises InvalidRequest for a malformed message and for invalid values."""
    if isinstance(request, _Malformed):
        raise InvalidRequest("the request is not a valid message for this method", hint="see the .proto files")
    if hasattr(request, "__aiter__"):
        return _checked_pieces(request)
    if isinstance(request, Message):
        check_values(request)
    return request


async def _checked_pieces(requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    async for request in requests:
        yield _checked(request)


@asynccontextmanager
async def _reporting_errors(context: Context, method: str) -> AsyncGenerator[None, None]:
    try:
        yield
    except FleetError as error:
        await abort(context, status(error))
    except grpc.aio.BaseError:
        raise
    except Exception as fault:  # noqa: BLE001  (the edge of the process)
        _log.exception("a call failed with an internal error", method=method)
        message = f"internal error ({type(fault).__name__}); see the server's log"
        info = error_details_pb2.ErrorInfo(reason="INTERNAL", domain=ERROR_DOMAIN)
        await abort(context, _status(grpc.StatusCode.INTERNAL, message, [info]))


def _cut(text: str, limit: int) -> str:
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= limit else data[: limit - 3].decode("utf-8", "ignore") + "…"
