"""Calls as operators see them: how many of which method end how, how long they take, their spans, a line each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from typing import TYPE_CHECKING, Any, cast

import grpc
import structlog
from google.protobuf import descriptor_pool

from services.auth import OPEN_SERVICES, principal
from services.errors import Context, Handler, Interceptor, reshaped
from swe_ai_fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_CARRIED = ("traceparent", "tracestate")
_CODES = {cast("tuple[int, str]", code.value)[0]: code.name for code in grpc.StatusCode}

_log = structlog.get_logger(__name__)


class ObservingInterceptor(Interceptor):
    """Stands before all others, so that it sees what those refuse, too. Probes are left out.

    Args:
        telemetry: Where spans and figures go.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = str(handler_call_details.method)
        found = cast("Handler | None", await continuation(handler_call_details))
        if found is None or method.startswith((*OPEN_SERVICES, "/grpc.reflection.")):
            return cast("Handler", found)
        metadata = cast("Sequence[tuple[str, str | bytes]]", handler_call_details.invocation_metadata or ())
        carrier = {key: value for key, value in metadata if key in _CARRIED and isinstance(value, str)}
        return reshaped(
            found, lambda one: self._called(one, method, carrier), lambda one: self._streamed(one, method, carrier)
        )

    def _called(
        self, behaviour: Callable[[Any, Context], Awaitable[Any]], method: str, carrier: dict[str, str]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            with self._observed(method, carrier, context):
                return await behaviour(request, context)

        return call

    def _streamed(
        self, behaviour: Callable[[Any, Context], AsyncGenerator[Any, None]], method: str, carrier: dict[str, str]
    ) -> Callable[[Any, Context], AsyncGenerator[Any, None]]:
        async def call(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            with self._observed(method, carrier, context):
                async with aclosing(behaviour(request, context)) as replies:
                    async for reply in replies:
                        yield reply

        return call

    @contextmanager
    def _observed(self, method: str, carrier: dict[str, str], context: Context) -> Generator[None]:
        service, name = _known(method)
        exposition, began, code = self._telemetry.exposition, time.perf_counter(), "OK"
        with ExitStack() as around:
            span = self._span(around, service, name, carrier)
            if exposition is not None:
                around.enter_context(exposition.instruments.grpc_open(service, name))
            try:
                yield
            except (asyncio.CancelledError, GeneratorExit):
                code = "CANCELLED"
                raise
            except BaseException:
                code = _code(context)
                raise
            finally:
                took = time.perf_counter() - began
                if exposition is not None:
                    exposition.instruments.grpc_ended(service, name, code, took)
                _told(method, code, took, span)

    def _span(self, around: ExitStack, service: str, name: str, carrier: dict[str, str]) -> Span | None:
        if self._telemetry.tracing is None:
            around.enter_context(self._telemetry.passing(carrier))
            return None
        from opentelemetry.trace import SpanKind

        from swe_ai_fleet.telemetry.tracing import joined

        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        return around.enter_context(
            self._telemetry.tracing.span(f"{service}/{name}", attributes, kind=SpanKind.SERVER, context=joined(carrier))
        )


def _known(method: str) -> tuple[str, str]:
    """Service and method; what is in no contract of ours is `other`, so that strangers cannot make names up."""
    service, _, name = method.lstrip("/").rpartition("/")
    try:
        found = descriptor_pool.Default().FindServiceByName(service)  # pyright: ignore[reportUnknownMemberType]
    except KeyError:
        return "other", "other"
    return (service, name) if name in found.methods_by_name else (service, "other")


def _told(method: str, code: str, seconds: float, span: Span | None) -> None:
    try:
        caller = principal()
    except LookupError:
        # Whoever was refused at the door has no name, and is no accepted call.
        who: dict[str, str] = {}
    else:
        who = {"tenant": caller.tenant, "caller": caller.name}
        _log.debug("call", method=method, code=code, ms=round(seconds * 1000, 1), **who)
    if span is not None:
        span.set_attribute("rpc.grpc.status_code", next((n for n, name in _CODES.items() if name == code), 2))
        for key, value in who.items():
            span.set_attribute(f"fleet.{key}", value)


def _code(context: Context) -> str:
    """The code that a call was ended with; UNKNOWN where nobody said."""
    code = cast("Any", context.code())
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _CODES.get(int(code or 2), "UNKNOWN")
