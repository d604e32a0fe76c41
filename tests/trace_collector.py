"""An OpenTelemetry collector that keeps what it is sent: OTLP over HTTP, spans only."""

from __future__ import annotations

import asyncio
import gzip
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from aiohttp import web

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
    attributes: dict[str, object] = field(default_factory=dict[str, object])
    events: tuple[str, ...] = ()
    failed: bool = False


class TraceCollector:
    """An async context: inside, it takes spans at `url`. With a `status` other than 200 it refuses all of them.

    The newest 100,000 spans are kept.
    """

    def __init__(self, *, status: int = 200) -> None:
        self.status = status
        self.requests = 0
        self.url = ""
        self._spans: deque[CollectedSpan] = deque(maxlen=_MOST_SPANS)
        self._news = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        from aiohttp import web

        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = cast("tuple[str, int]", self._runner.addresses[0])[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def spans(self) -> Sequence[CollectedSpan]:
        """Everything that is kept, in the order in which it came in."""
        return tuple(self._spans)

    def trace(self, trace_id: str) -> list[CollectedSpan]:
        """The spans of a trace, by their start."""
        return sorted((one for one in self._spans if one.trace_id == trace_id), key=lambda one: one.start)

    async def until(
        self, there: Callable[[Sequence[CollectedSpan]], bool], *, seconds: float = 20.0
    ) -> Sequence[CollectedSpan]:
        """Wait until what came in satisfies a condition. Raises TimeoutError."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: there(self.spans))
        return self.spans

    async def _take(self, request: web.Request) -> web.Response:
        from aiohttp import web
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = await request.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        async with self._news:
            self.requests += 1
            if self.status == 200:
                self._spans.extend(_spans(sent))
            self._news.notify_all()
        return web.Response(status=self.status, body=b"", content_type="application/x-protobuf")


def _spans(sent: Any) -> Iterable[CollectedSpan]:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

    for resource in sent.resource_spans:
        service = str(_values(resource.resource.attributes).get("service.name", ""))
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield CollectedSpan(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    service=service,
                    kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes=_values(span.attributes),
                    events=tuple(event.name for event in span.events),
                    failed=span.status.code == Status.STATUS_CODE_ERROR,
                )


def _values(pairs: Any) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(one) for one in value.array_value.values)
    return getattr(value, kind) if kind else None
