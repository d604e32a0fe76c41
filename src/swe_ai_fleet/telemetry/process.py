"""The telemetry of one process, opened by its composition root."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, cast

from swe_ai_fleet.ports import EventLog, Fleet, Repositories, ResultBus
from swe_ai_fleet.telemetry.trace_headers import w3c

if TYPE_CHECKING:
    from swe_ai_fleet.settings import Settings
    from swe_ai_fleet.telemetry.exposition import Exposition
    from swe_ai_fleet.telemetry.tracing import Tracing


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """The tracing and metrics of a process; None where they are off."""

    tracing: Tracing | None = None
    exposition: Exposition | None = None

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics; empty where they are not served."""
        return self.exposition.url if self.exposition is not None else ""

    def observed(self, log: EventLog) -> EventLog:
        """The log, with ids of writers in log lines, spans for their work and metrics of writes."""
        from swe_ai_fleet.telemetry.traced_ports import ObservedLog

        timed = self.exposition.instruments.appended if self.exposition is not None else None
        return ObservedLog(log, self.tracing, timed)

    def fleet(self, fleet: Fleet) -> Fleet:
        """The fleet, with spans and the trace passed on to other processes."""
        if self.tracing is None:
            return fleet
        from swe_ai_fleet.telemetry.traced_ports import TracedFleet

        return TracedFleet(fleet, self.tracing)

    def repositories(self, repositories: Repositories) -> Repositories:
        """The repositories, with spans for slow operations."""
        if self.tracing is None:
            return repositories
        from swe_ai_fleet.telemetry.traced_ports import TracedRepositories

        return cast("Repositories", TracedRepositories(repositories, self.tracing))

    def results(self, results: ResultBus) -> ResultBus:
        """The result bus, with the trace passed on in messages."""
        if self.tracing is None:
            return results
        from swe_ai_fleet.telemetry.traced_ports import TracedResults

        return TracedResults(results, self.tracing)

    def stamp(self) -> dict[str, str]:
        """The trace headers for a message: of the current span, or without tracing those of the current call."""
        if self.tracing is None:
            return dict(_call_headers.get() or ())
        from swe_ai_fleet.telemetry.tracing import stamp

        return stamp()

    @contextmanager
    def passing(self, headers: Mapping[str, str]) -> Generator[None]:
        """Within the context, in a process without tracing, `stamp` returns the trace headers of a call."""
        trace_headers = w3c(headers) if headers else {}
        if not trace_headers:
            yield
            return
        token = _call_headers.set(trace_headers)
        try:
            yield
        finally:
            # An abandoned stream is closed in another task, whose context does not have this value.
            with suppress(ValueError):
                _call_headers.reset(token)

    @contextmanager
    def continuing(self, traceparent: str) -> Generator[None]:
        """Within the context, spans are children of the span of a `traceparent`."""
        if self.tracing is None or not traceparent:
            yield
            return
        from swe_ai_fleet.telemetry.tracing import current, joined

        context = joined({"traceparent": traceparent})
        if context is None:
            yield
            return
        with current(context):
            yield

    @contextmanager
    def receiving(self, subject: str, headers: Mapping[str, str]) -> Generator[None]:
        """Within the context, a span covers the handling of a message from a subject, in the trace of its headers."""
        if self.tracing is None:
            yield
            return
        from opentelemetry.trace import SpanKind

        from swe_ai_fleet.telemetry.tracing import joined

        attributes = {
            "messaging.system": "nats",
            "messaging.operation.type": "process",
            "messaging.destination.name": subject,
        }
        carrier = {key.lower(): value for key, value in headers.items() if key.lower() in ("traceparent", "tracestate")}
        with self.tracing.span(f"process {subject}", attributes, kind=SpanKind.CONSUMER, context=joined(carrier)):
            yield


_OFF = Telemetry()
_call_headers: ContextVar[dict[str, str] | None] = ContextVar("trace headers of the call", default=None)
_telemetry: ContextVar[Telemetry] = ContextVar("telemetry", default=_OFF)


def own_telemetry() -> Telemetry:
    """The telemetry of this process, for composition roots, which call this once."""
    return _telemetry.get()


@asynccontextmanager
async def open_telemetry(
    settings: Settings, *, service: str, serves: bool = True, mask: Callable[[str], str] = str
) -> AsyncGenerator[Telemetry]:
    """Traces to `otlp_endpoint` and metrics on `metrics_listen`, each where it is set, until the context ends.

    Args:
        settings: The endpoints for traces and metrics.
        service: The name of this service, such as `orchestrator`.
        serves: Whether it serves its metrics; those of hosts on Ray are read by their orchestrator.
        mask: Replaces secrets in the content of spans.

    Raises:
        PreconditionFailed: The address of the metrics cannot be bound.
        InvalidRequest: `otlp_endpoint` is not a URL.
    """
    async with AsyncExitStack() as stack:
        tracing = exposition = None
        if settings.otlp_endpoint:
            from swe_ai_fleet.telemetry.tracing import open_tracing

            _check(settings.otlp_endpoint)
            tracing = await stack.enter_async_context(
                open_tracing(
                    settings.otlp_endpoint,
                    service=service,
                    version=version("swe-ai-fleet"),
                    content=settings.trace_content,
                    mask=mask,
                )
            )
        if serves and settings.metrics_listen:
            from swe_ai_fleet.telemetry.exposition import certificate_figures, certificates, open_exposition

            exposition = await stack.enter_async_context(open_exposition(settings.metrics_listen))
            files = certificates(settings)
            stack.enter_context(exposition.source("certificates", lambda: certificate_figures(files)))
        telemetry = Telemetry(tracing=tracing, exposition=exposition)
        token = _telemetry.set(telemetry)
        try:
            yield telemetry
        finally:
            try:
                _telemetry.reset(token)
            except ValueError:
                # It was opened in one task and closed in another, whose context does not have this value.
                _telemetry.set(_OFF)


def _check(endpoint: str) -> None:
    from swe_ai_fleet.domain.errors import InvalidRequest

    if not endpoint.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"{endpoint[:80]!r} is not a URL", field="otlp_endpoint", hint="such as http://127.0.0.1:4318"
        )
