"""The gRPC server of a process's servicers: address, token, health, reflection, graceful shutdown.

It reports calls to operators: counts by method and code, durations, spans, and a log line for each.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
import structlog
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.auth import CHECK_SECONDS, OPEN_SERVICES, AccessInterceptor, Authenticator, OneToken, principal
from services.certificates import Certificates, ServerTls
from services.errors import Context, Continuation, ErrorInterceptor, Handler, Interceptor, within
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.following import in_background
from swe_ai_fleet.telemetry import Telemetry, own_telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from prometheus_client.metrics_core import Metric

_CARRIED = ("traceparent", "tracestate")
_CODES = {cast("tuple[int, str]", code.value)[0]: code.name for code in grpc.StatusCode}

_log = structlog.get_logger(__name__)


class ObservingInterceptor(Interceptor):
    """Records calls; it runs before all other interceptors, so that it records refused calls too, but not probes."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        method = str(handler_call_details.method)
        handler = cast("Handler | None", await continuation(handler_call_details))
        if handler is None or method.startswith(OPEN_SERVICES):
            return cast("Handler", handler)
        metadata = cast("Sequence[tuple[str, str | bytes]]", handler_call_details.invocation_metadata or ())
        carrier = {key: value for key, value in metadata if key in _CARRIED and isinstance(value, str)}
        return within(handler, lambda context: self._observed(method, carrier, context))

    @asynccontextmanager
    async def _observed(self, method: str, carrier: dict[str, str], context: Context) -> AsyncGenerator[None]:
        service, name = _labels(method)
        exposition, began, code = self._telemetry.exposition, time.perf_counter(), "OK"
        with ExitStack() as around:
            attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
            span = server_span(self._telemetry, around, f"{service}/{name}", attributes, carrier)
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
                seconds = time.perf_counter() - began
                if exposition is not None:
                    exposition.instruments.grpc_ended(service, name, code, seconds)
                _log_call(method, code, seconds, span)


def server_span(
    telemetry: Telemetry, around: ExitStack, name: str, attributes: dict[str, str], carrier: dict[str, str]
) -> Span | None:
    """The span of a request, until the context ends, inside the span in its headers; None without tracing."""
    if telemetry.tracing is None:
        around.enter_context(telemetry.passing(carrier))
        return None
    from opentelemetry.trace import SpanKind

    from swe_ai_fleet.telemetry.tracing import joined

    return around.enter_context(telemetry.tracing.span(name, attributes, kind=SpanKind.SERVER, context=joined(carrier)))


def _labels(method: str) -> tuple[str, str]:
    """Service and method; a name outside the contract is `other`, so that callers cannot invent metric labels."""
    service, _, name = method.lstrip("/").rpartition("/")
    try:
        descriptor = descriptor_pool.Default().FindServiceByName(service)
    except KeyError:
        return "other", "other"
    return (service, name) if name in descriptor.methods_by_name else (service, "other")


def _log_call(method: str, code: str, seconds: float, span: Span | None) -> None:
    try:
        caller = principal()
    except LookupError:
        # An unauthenticated caller has no name, and its call was not accepted.
        labels: dict[str, str] = {}
    else:
        labels = {"tenant": caller.tenant, "caller": caller.name}
        _log.debug("call", method=method, code=code, ms=round(seconds * 1000, 1), **labels)
    if span is not None:
        span.set_attribute("rpc.grpc.status_code", next((n for n, name in _CODES.items() if name == code), 2))
        for key, value in labels.items():
            span.set_attribute(f"fleet.{key}", value)


def _code(context: Context) -> str:
    """The code of a call that has ended; UNKNOWN if it has none."""
    code = cast("Any", context.code())
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _CODES.get(int(code or 2), "UNKNOWN")


MAX_REQUEST_BYTES = 4 * 1024 * 1024
READINESS_SECONDS = 3.0
GRACE_SECONDS = 3.0
LIVENESS = "liveness"
"""A health service that is SERVING while the process answers, even without NATS: a restart would not help then."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    # Clients reconnect regularly and so find new replicas and renewed certificates; existing calls continue.
    ("grpc.max_connection_age_ms", 30 * 60_000),
    # Two servers on one port would share its calls at random.
    ("grpc.so_reuseport", 0),
    # A dead client is detected within half a minute; clients may ping as often.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service to serve: its full name (`fleet.….v1.…`), its servicer, and the generated function that adds it."""

    name: str
    add: Callable[[Any, Any], None]
    servicer: object


def service_of(servicer: object) -> Service:
    """The service of a servicer, by its generated base class."""
    base = next(kind for kind in type(servicer).__mro__ if kind.__module__.endswith("_pb2_grpc"))
    add = getattr(sys.modules[base.__module__], f"add_{base.__name__}_to_server")
    package = base.__module__.rpartition(".")[0]
    return Service(name=f"{package}.{base.__name__.removesuffix('Servicer')}", add=add, servicer=servicer)


@asynccontextmanager
async def serve_grpc(
    services: Sequence[Service],
    listen: str,
    token: str | Authenticator | None,
    ready: Callable[[], Awaitable[bool]],
    *,
    setting: str = "listen",
    tls: ServerTls | None = None,
    probe_listen: str = "",
    readiness_seconds: float = READINESS_SECONDS,
    grace_seconds: float = GRACE_SECONDS,
    check_seconds: float = CHECK_SECONDS,
) -> AsyncGenerator[str, None]:
    """Serve until the context ends; yields the bound address, such as `127.0.0.1:50055`.

    Args:
        services: The services, besides health and reflection.
        listen: `host:port`; port 0 chooses a free one.
        token: The token of callers, or an authenticator; None accepts all callers.
        ready: Whether the server can do its work now; called before the first call and then periodically.
        setting: The setting that `listen` comes from, for error messages.
        tls: The certificate; None: no TLS.
        probe_listen: Another address for its health service, without TLS, for probes; empty: none.
        readiness_seconds: The interval of readiness checks.
        grace_seconds: The time for calls to end when the server stops.
        check_seconds: The interval of checks whether the caller of a stream still has access.

    Raises:
        PreconditionFailed: The address cannot be bound, or the certificate cannot be used.
    """
    authenticator = OneToken(token) if token is None or isinstance(token, str) else token
    interceptors: Sequence[Interceptor] = [
        ObservingInterceptor(own_telemetry()),
        AccessInterceptor(authenticator, check_seconds=check_seconds),
        ErrorInterceptor(),
    ]
    server: grpc.aio.Server = cast("Any", grpc.aio).server(interceptors=interceptors, options=_OPTIONS)
    for service in services:
        service.add(service.servicer, server)
    names = tuple(service.name for service in services)
    state: Any = _Health()
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        if tls is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, Certificates(tls).for_grpc())
    except RuntimeError as error:
        raise PreconditionFailed(
            f"cannot listen on {listen}", field=setting, hint="another process may use the port"
        ) from error
    await _report(state, names, await _answers(ready))
    await state.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
    probed = await _probed(state, probe_listen)
    await server.start()
    try:
        async with in_background(_follow(state, names, ready, readiness_seconds), name="readiness"):
            yield f"{listen.rpartition(':')[0]}:{port}"
    finally:
        await state.enter_graceful_shutdown()
        await server.stop(grace_seconds)
        if probed is not None:
            await probed.stop(None)


_HealthServicer: Any = health.aio.HealthServicer  # pyrefly: ignore[missing-attribute]


class _Health(_HealthServicer):
    """The library's servicer, with the RPC `List` that its asynchronous version lacks."""

    async def List(self, request: object, context: object) -> Any:
        statuses = {name: health_pb2.HealthCheckResponse(status=status) for name, status in self._server_status.items()}
        return health_pb2.HealthListResponse(statuses=statuses)  # pyrefly: ignore[missing-attribute]  # its stubs are older


async def _probed(state: Any, listen: str) -> grpc.aio.Server | None:
    """A server of the health service only; None without an address. Raises PreconditionFailed."""
    if not listen:
        return None
    server: grpc.aio.Server = cast("Any", grpc.aio).server(options=_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    try:
        server.add_insecure_port(listen)
    except RuntimeError as error:
        raise PreconditionFailed(
            f"cannot listen on {listen}", field="probe_listen", hint="another process may use the port"
        ) from error
    await server.start()
    return server


async def _follow(state: Any, names: Sequence[str], ready: Callable[[], Awaitable[bool]], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await _report(state, names, await _answers(ready))


async def _answers(ready: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await ready()
    except FleetError:
        return False


async def _report(state: Any, names: Sequence[str], serving: bool) -> None:
    status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", *names):
        await state.set(name, status)


@asynccontextmanager
async def nats_metrics(telemetry: Telemetry, log: JetStream) -> AsyncGenerator[None]:
    """A context in which this process's metrics say whether JetStream answers, and how fast."""
    if telemetry.exposition is None:
        yield
        return
    from prometheus_client.metrics_core import GaugeMetricFamily

    async def nats() -> list[Metric]:
        ping = await log.ping()
        seconds = ping.latency_ms / 1_000
        return [
            GaugeMetricFamily("fleet_nats_up", "Whether JetStream answers.", float(ping.ok)),
            GaugeMetricFamily("fleet_nats_round_trip_seconds", "How long one question took.", seconds),
        ]

    with telemetry.exposition.source("nats", nats):
        yield
