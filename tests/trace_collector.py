"""An OpenTelemetry collector that keeps what it is sent: OTLP over HTTP, spans only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.tool_doubles import served

_MOST_SPANS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedSpan:
    """A span as it came in. Times are nanoseconds since 1970; ids are hexadecimal, `parent_id` empty for a root."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    service: str
    kind: str
    start: int
    end: int
    attributes: dict[str, object]
    failed: bool


class TraceCollector:
    """An async context: inside, it takes spans at `url`. With a `status` other than 200 it refuses all of them.

    The newest 100,000 spans are kept.
    """

    def __init__(self, *, status: int = 200) -> None:
        self.status = status
        self.url = ""
        self._spans: deque[CollectedSpan] = deque(maxlen=_MOST_SPANS)
        self._news = asyncio.Condition()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.url = f"http://127.0.0.1:{await self._stack.enter_async_context(served(self._take))}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def trace(self, trace_id: str) -> list[CollectedSpan]:
        """The spans of a trace, by their start."""
        return sorted((one for one in self._spans if one.trace_id == trace_id), key=lambda one: one.start)

    async def until(self, there: Callable[[Sequence[CollectedSpan]], bool]) -> None:
        """Wait until what came in satisfies a condition. Raises TimeoutError."""
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: there(tuple(self._spans)))

    async def _take(self, request: web.Request) -> web.Response:
        sent = ExportTraceServiceRequest.FromString(await request.read())
        async with self._news:
            if self.status == 200:
                self._spans.extend(_spans(sent))
            self._news.notify_all()
        return web.Response(status=self.status, content_type="application/x-protobuf")


def _spans(sent: Any) -> list[CollectedSpan]:
    return [
        CollectedSpan(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            service=str(_values(resource.resource.attributes).get("service.name", "")),
            kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes=_values(span.attributes),
            failed=span.status.code == Status.STATUS_CODE_ERROR,
        )
        for resource in sent.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(pairs: Any) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(one) for one in value.array_value.values)
    return getattr(value, kind) if kind else None
