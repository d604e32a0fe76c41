"""The telemetry of one process, as its composition root opened it."""

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
    """What a process tells operators beside its log lines: spans and metrics, or neither (None)."""

    tracing: Tracing | None = None
    exposition: Exposition | None = None

    @property
    def metrics_url(self) -> str:
        """Where the metrics are; empty where nobody can ask for them."""
        return self.exposition.url if self.exposition is not None else ""

    def observed(self, log: EventLog) -> EventLog:
        """A log whose writers are in log lines, spans and metrics."""
        from swe_ai_fleet.telemetry.traced_ports import ObservedLog

        timed = self.exposition.instruments.appended if self.exposition is not None else None
        return ObservedLog(log, self.tracing, timed)

    def fleet(self, fleet: Fleet) -> Fleet:
        """A fleet that goes on with the trace."""
        if self.tracing is None:
            return fleet
        from swe_ai_fleet.telemetry.traced_ports import TracedFleet

        return TracedFleet(fleet, self.tracing)

    def repositories(self, repositories: Repositories) -> Repositories:
        """Repositories whose slow ways have spans."""
        if self.tracing is None:
            return repositories
        from swe_ai_fleet.telemetry.traced_ports import TracedRepositories

        return cast("Repositories", TracedRepositories(repositories, self.tracing))

    def results(self, results: ResultBus) -> ResultBus:
        """A result bus whose messages go on with the trace."""
        if self.tracing is None:
            return results
        from swe_ai_fleet.telemetry.traced_ports import TracedResults

        return TracedResults(results, self.tracing)

    def stamp(self) -> dict[str, str]:
        """The headers with which a message that is sent now names the current span, or that of the call it is for."""
        if self.tracing is None:
            return dict(_passed.get() or ())
        from swe_ai_fleet.telemetry.tracing import stamp

        return stamp()

    @contextmanager
    def passing(self, headers: Mapping[str, str]) -> Generator[None]:
        """Within, `stamp` names the span that the headers of a call name, in a process that makes none."""
        trace_headers = w3c(headers) if headers else {}
        if not trace_headers:
            yield
            return
        token = _passed.set(trace_headers)
        try:
            yield
        finally:
            # A stream that nobody reads any more is closed in another task, whose context never had it.
            with suppress(ValueError):
                _passed.reset(token)

    @contextmanager
    def continuing(self, traceparent: str) -> Generator[None]:
        """Within, spans belong to the one that a `traceparent` names."""
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
        """Within, a message is handled that was received on a subject, as the trace in its headers has it."""
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
_passed: ContextVar[dict[str, str] | None] = ContextVar("headers passed on", default=None)
_here: ContextVar[Telemetry] = ContextVar("telemetry", default=_OFF)


def own_telemetry() -> Telemetry:
    """The telemetry of the process being composed: asked for by composition roots, which keep the answer."""
    return _here.get()


@asynccontextmanager
async def open_telemetry(
    settings: Settings, *, service: str, serves: bool = True, mask: Callable[[str], str] = str
) -> AsyncGenerator[Telemetry]:
    """Traces to `otlp_endpoint` and metrics on `metrics_listen`, each where it is set, until the context ends.

    Args:
        settings: What is wanted.
        service: What this process is, such as `orchestrator`.
        serves: Whether it has a port for metrics of its own; hosts on Ray are asked by their orchestrator.
        mask: Replaces secrets in what spans tell.

    Raises:
        PreconditionFailed: The address of the metrics cannot be bound.
        InvalidRequest: `otlp_endpoint` is no URL.
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
        token = _here.set(telemetry)
        try:
            yield telemetry
        finally:
            try:
                _here.reset(token)
            except ValueError:
                # Opened in one task and closed in another one, whose context never had it.
                _here.set(_OFF)


def _check(endpoint: str) -> None:
    from swe_ai_fleet.domain.errors import InvalidRequest

    if not endpoint.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"{endpoint[:80]!r} is not a URL", field="otlp_endpoint", hint="such as http://127.0.0.1:4318"
        )
