"""Checks requests against the contract, and turns errors into gRPC statuses with `google.rpc` details."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf import any_pb2, duration_pb2, json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from fleet.options.v1 import options_pb2
from swe_ai_fleet.contract import ERROR_DOMAIN, descriptor_of
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
from swe_ai_fleet.domain.json_values import parsed
from swe_ai_fleet.domain.text import MAX_MS, check_length

# Clients accept a header block of 8 KiB, in which the status is sent twice: percent-encoded, and in base64.
MAX_MESSAGE_BYTES = 800
MAX_FIELD_BYTES = 200
MAX_HINT_BYTES = 300

_log = structlog.get_logger()

if TYPE_CHECKING:
    from fleet.options.v1.options_pb2 import Bounds

    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
    Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]
else:
    # Only the type stubs know these as generic.
    Handler, Context, Interceptor = grpc.RpcMethodHandler, grpc.aio.ServicerContext, grpc.aio.ServerInterceptor
    Continuation = Callable


class NotAvailable(FleetError):
    """A part of the contract that this server does not implement yet; `field` names the field that requested it."""


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
    """The code of an error: that of its type, or else of the nearest base type."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), grpc.StatusCode.UNKNOWN)


def status(error: FleetError) -> status_pb2.Status:
    """An error as `google.rpc.Status` with ErrorInfo, and if applicable BadRequest and RetryInfo."""
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
    """Turns a call's exception into its status. A bug becomes INTERNAL and is logged here, once."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = cast("Handler | None", await continuation(handler_call_details))
        method = str(handler_call_details.method)
        return within(
            handler, lambda context: _reporting_errors(context, method), take=_checked, read=_marking_malformed
        )


def reshaped(
    handler: Handler | None,
    call: Callable[[Any], Any],
    stream: Callable[[Any], Any],
    *,
    read: Callable[[Any], Any] = lambda deserializer: deserializer,
) -> Handler:
    """A method's handler with a wrapped behaviour.

    Args:
        handler: The method's handler; None (an unknown method) is returned unchanged.
        call: Wraps a behaviour that is awaited.
        stream: Wraps a behaviour that is an async generator.
        read: Wraps the deserializer of requests.
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
    """A method's handler whose calls run inside a context; `take`, also inside, converts requests for them."""

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
    """Represents a malformed request: gRPC would report a deserializer's exception as a fault of the server."""


def _marking_malformed(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserializer(data)
        except DecodeError:
            return _Malformed()

    return read


def _checked(request: Any) -> Any:
    """The request, or the messages of a streamed one. Raises InvalidRequest for malformed messages and bad values."""
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


MAX_ENTRIES = 10_000
"""The maximum number of entries of a field without its own bound."""
_KEY_CHARS = 64
"""The maximum length of a map's key in the name of a field, since names grow with nested maps."""
_DEFAULT_BOUNDS = options_pb2.Bounds(max_items=MAX_ENTRIES)


M = TypeVar("M", bound=Message)


def parsed_message(data: bytes, message: M) -> M:
    """The message, parsed from JSON and checked. Raises InvalidRequest."""
    try:
        parsed(json_format.Parse, data, message, max_recursion_depth=64)
    except (json_format.ParseError, ValueError) as fault:
        kind = message.DESCRIPTOR.name
        raise InvalidRequest(f"the message is not valid JSON for a {kind}: {fault}"[:1000], field="message") from None
    check_values(message)
    return message


@cache
def bounds_of(field: FieldDescriptor) -> Bounds | None:
    """The bounds of a field in the contract; None if it has none."""
    # The stubs have another type for extensions.
    options, extension = cast("Any", field.GetOptions()), options_pb2.bounds
    return cast("Bounds", options.Extensions[extension]) if options.HasExtension(extension) else None


@cache
def _required(message: Descriptor) -> list[FieldDescriptor]:
    return [field for field in message.fields if (bounds := bounds_of(field)) is not None and bounds.required]


def check_values(message: Message, path: str = "") -> None:
    """Check a message against the contract.

    Without other bounds, no field may hold a negative number, an unknown enum value, a NUL character or more than
    MAX_ENTRIES entries.

    Raises:
        InvalidRequest: The first invalid value, with the path of its field from the request down.
    """
    for field, value in message.ListFields():
        name, bounds = _below(path, field.name), bounds_of(field) or _DEFAULT_BOUNDS
        if field.is_repeated:
            most = bounds.max_items if bounds.HasField("max_items") else MAX_ENTRIES
            if len(value) > most:
                # Before entries are checked: a request may hold a million of them, which would take a second.
                raise InvalidRequest(f"{name} has {len(value)} entries", field=name, hint=f"at most {most}")
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            keys, inner = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for key, entry in cast("Mapping[object, object]", value).items():
                _check_value(keys, key, name, bounds)
                _check_value(inner, entry, f"{name}[{str(key)[:_KEY_CHARS]}]", bounds)
        elif field.is_repeated:
            for number, entry in enumerate(cast("list[object]", value)):
                _check_value(field, entry, f"{name}[{number}]", bounds)
        else:
            _check_value(field, value, name, bounds)
    for field in _required(descriptor_of(message)):
        if not getattr(message, field.name):
            raise InvalidRequest(f"no {field.name} given", field=_below(path, field.name))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _check_value(field: FieldDescriptor, value: object, name: str, bounds: Bounds) -> None:
    match value:
        case Message():
            check_values(value, name)
        case str():
            _check_text(value, name, bounds)
        case bool() | bytes():
            return
        case int() | float() if field.enum_type is None:
            _check_number(field, value, name, bounds)
        case _ if field.enum_type is not None and value not in field.enum_type.values_by_number:
            names = ", ".join(field.enum_type.values_by_name)
            raise InvalidRequest(f"{name} has the unknown value {value}", field=name, hint=f"one of {names}")
        case _:
            return


def _check_text(text: str, name: str, bounds: Bounds) -> None:
    if "\0" in text:
        raise InvalidRequest(f"{name} has a NUL character", field=name)
    if bounds.HasField("max_chars"):
        check_length(text, bounds.max_chars, field=name)
    if bounds.HasField("pattern") and not re.fullmatch(bounds.pattern, text):
        raise InvalidRequest(f"{text[:64]!r} is not {bounds.form}", field=name)


def _check_number(field: FieldDescriptor, number: float, name: str, bounds: Bounds) -> None:
    whole = field.cpp_type not in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
    usual = "the default" if whole else "no limit"
    if whole and number < 0:
        raise InvalidRequest(f"{name} is {number}", field=name, hint="0 for the default, or a positive number")
    if bounds.HasField("max") and not number <= bounds.max:
        raise InvalidRequest(f"{name} is {number:g}", field=name, hint=f"at most {bounds.max:g}; 0 for {usual}")
    if bounds.HasField("min") and number < bounds.min:
        raise InvalidRequest(f"{name} is {number:g}", field=name, hint=f"at least {bounds.min:g}")
    if bounds.HasField("max") and not whole and number < 0:
        raise InvalidRequest(f"{name} is {number:g}", field=name, hint="0 for no limit, or a positive number")
    if whole and field.name.endswith("_ms") and number > MAX_MS:
        raise InvalidRequest(f"{name} is {number}", field=name, hint="milliseconds since 1970")
