"""Spans of this process, sent to a collector; the only module that uses OpenTelemetry's SDK."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import datetime

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from swe_ai_fleet.telemetry.trace_headers import w3c

Attributes = Mapping[str, str | bool | int | float | tuple[str, ...]]

_DELAY_MS = 1_000
"""How long spans are collected before they are sent; a killed host loses no more than that."""
_FLUSH_SECONDS = 3.0
_EXPORT_SECONDS = 5.0
_MAX_CONTENT_CHARS = 16_384
_MAX_NAME_CHARS = 200
_LENGTH_LIMITS = ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")
_SCOPE = "swe_ai_fleet"
_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing:
    """Makes spans. Nothing here waits for the collector, and its faults never reach the traced work.

    Args:
        content: Whether spans include the messages of models and the data of tools.
    """

    def __init__(
        self, provider: TracerProvider, ids: ChosenIds, *, content: bool = False, mask: Callable[[str], str] = str
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_SCOPE)
        self._ids = ids
        self._mask = mask
        self.content = content

    def masked(self, text: str) -> str:
        """Content for a span: without secrets, and not too long."""
        return self._mask(text[: 2 * _MAX_CONTENT_CHARS])[:_MAX_CONTENT_CHARS]

    def emit(
        self,
        name: str,
        *,
        start: int,
        end: int,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str = "",
        context: Context | None = None,
        span_id: int = 0,
    ) -> None:
        """A span of something that has ended; times are nanoseconds since 1970, `span_id` 0 means any."""
        with self._ids.chosen(span_id):
            span = self._tracer.start_span(
                name[:_MAX_NAME_CHARS],
                context=context,
                kind=kind,
                attributes=attributes,
                start_time=min(start, end),
            )
        if error:
            failed(span, error)
        span.end(end_time=end)

    def begin(self, name: str, attributes: Attributes) -> Span:
        """A span below the current one; the caller ends it."""
        return self._tracer.start_span(name, attributes=attributes)

    @contextmanager
    def span(
        self, name: str, attributes: Attributes, *, kind: SpanKind = SpanKind.INTERNAL, context: Context | None = None
    ) -> Generator[Span]:
        """A span that is current within the context; an exception ends it as failed, and is raised."""
        span = self._tracer.start_span(name, context=context, kind=kind, attributes=attributes)
        try:
            with current(trace.set_span_in_context(span, context)):
                yield span
        except (asyncio.CancelledError, GeneratorExit):
            span.set_attribute("fleet.cancelled", True)
            raise
        except BaseException as error:
            failed(span, type(error).__name__)
            raise
        finally:
            span.end()

    def flush(self) -> None:
        """Send the waiting spans, for a few seconds at most, and stop."""
        self._provider.shutdown()


class ChosenIds(IdGenerator):
    """Random ids, except for a span whose id was chosen."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._next: ContextVar[int] = ContextVar("span id", default=0)

    @contextmanager
    def chosen(self, span_id: int) -> Generator[None]:
        """Within the context, a span has this id; 0: any."""
        token = self._next.set(span_id)
        try:
            yield
        finally:
            self._next.reset(token)

    def generate_span_id(self) -> int:
        """The chosen id, or a random one."""
        return self._next.get() or self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        """A random id."""
        return self._random.generate_trace_id()


@asynccontextmanager
async def open_tracing(
    endpoint: str, *, service: str, version: str, content: bool, mask: Callable[[str], str]
) -> AsyncGenerator[Tracing]:
    """Send spans to a collector (`endpoint` is the base of its OTLP/HTTP URLs) until the context ends.

    The standard variables `OTEL_…` for sampling, headers, queues and the resource apply.
    """
    ids = ChosenIds()
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME") or service})
    resource = resource.merge(Resource({"service.version": version, "service.namespace": "swe-ai-fleet"}))
    provider = TracerProvider(resource=resource, id_generator=ids, span_limits=_limits(), shutdown_on_exit=False)
    seconds = float(os.environ.get("OTEL_EXPORTER_OTLP_TIMEOUT") or _EXPORT_SECONDS)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=seconds)
    delay = float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or _DELAY_MS)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay))
    tracing = Tracing(provider, ids, content=content, mask=mask)
    try:
        yield tracing
    finally:
        # In a thread, with a timeout: an unavailable collector must not delay the end of the process.
        flushing = asyncio.ensure_future(asyncio.to_thread(tracing.flush))
        await asyncio.wait([flushing], timeout=_FLUSH_SECONDS)


def _limits() -> SpanLimits:
    # Names of tools, calls and models come from models and their servers; OpenTelemetry has no default length limit.
    if any(os.environ.get(name) for name in _LENGTH_LIMITS):
        return SpanLimits()
    return SpanLimits(max_attribute_length=_MAX_CONTENT_CHARS)


def joined(carrier: Mapping[str, str]) -> Context | None:
    """The context of W3C headers (`traceparent`, `tracestate`); None without a valid one."""
    carried = w3c(carrier)
    if not carried:
        return None
    context = _PROPAGATOR.extract(carried, context=Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def stamp() -> dict[str, str]:
    """The W3C headers of the current span; empty without one."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier


@contextmanager
def current(context: Context) -> Generator[None]:
    """Make a context the current one within the `with` block."""
    token = otel_context.attach(context)
    try:
        yield
    finally:
        # An abandoned stream is closed in another task, whose context does not have this value.
        if otel_context.get_current() is context:
            otel_context.detach(token)


def execution_context(traceparent: str, execution_id: str) -> Context | None:
    """The context of an execution's span, whose id is the same on every replica; None without tracing."""
    parent = joined({"traceparent": traceparent})
    if parent is None:
        return None
    accepted = trace.get_current_span(parent).get_span_context()
    own = SpanContext(
        trace_id=accepted.trace_id,
        span_id=execution_span_id(execution_id, accepted.span_id),
        is_remote=True,
        trace_flags=accepted.trace_flags,
    )
    return trace.set_span_in_context(NonRecordingSpan(own), Context())


def execution_span_id(execution_id: str, accepted: int) -> int:
    """The span id of an execution, from its own id and the id of the span in which it was accepted."""
    digest = hashlib.sha256(f"{execution_id}/{accepted:016x}".encode()).digest()
    return int.from_bytes(digest[:8], "big") or 1


def failed(span: Span, error: str) -> None:
    """Mark a span as failed; `error` is a word of a small vocabulary."""
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR, error))


def nanoseconds(at: str) -> int:
    """UTC in ISO 8601 as nanoseconds since 1970."""
    return round(datetime.fromisoformat(at).timestamp() * 1e6) * 1_000
