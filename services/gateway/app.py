"""The gateway as an ASGI application: its rooms, put together behind middleware that observes requests.

Operators see how many requests of which route end how, how long they take, and their spans.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.access.stay import CHECK_SECONDS
from services.auth import ID_CHARS, Authenticator
from services.gateway.access import access_middleware, session_routes
from services.gateway.problems import HANDLERS
from services.gateway.rest.routes import rest_routes
from services.gateway.streams import Streams
from services.gateway.streams.feeds import Feeds
from services.gateway.upstream import Upstream
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import Telemetry, own_telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from prometheus_client.metrics_core import Metric

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PROBES = ("/health", "/ready")
_CARRIED = (b"traceparent", b"tracestate")

_log = structlog.get_logger(__name__)


class Observed:
    """ASGI middleware that stands before all others. Probes are left out; a WebSocket is a request with the status 101.

    Args:
        app: Answers.
        telemetry: Where spans and figures go.
    """

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry
        self._routes: dict[int, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        status, began = 500, time.perf_counter()
        method = scope.get("method", "GET") if scope.get("method", "GET") in _METHODS else "other"

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        with ExitStack() as deps:
            span = self._span(deps, scope, method)
            try:
                await self._app(scope, receive, noting)
            finally:
                seconds, route = time.perf_counter() - began, self._route(scope)
                if self._telemetry.exposition is not None:
                    self._telemetry.exposition.instruments.http_ended(method, route, status, seconds)
                if span is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
                    span.set_attribute("http.response.status_code", status)
                authenticated, named = scope.get("state", {}).get("authenticated"), scope.get("path_params", {})
                ids = {"tenant": authenticated.principal.tenant} if authenticated is not None else {}
                ids |= {key: str(named[key])[:ID_CHARS] for key in ("execution_id", "agent_id") if key in named}
                _log.debug("request", method=method, route=route, status=status, ms=round(seconds * 1000, 1), **ids)

    def _span(self, deps: ExitStack, scope: Scope, method: str) -> Span | None:
        headers = cast("list[tuple[bytes, bytes]]", scope["headers"])
        carrier = {key.decode(): value.decode("latin-1") for key, value in headers if key in _CARRIED}
        if self._telemetry.tracing is None:
            deps.enter_context(self._telemetry.passing(carrier))
            return None
        from opentelemetry.trace import SpanKind

        from swe_ai_fleet.telemetry.tracing import joined

        attributes = {"http.request.method": method, "url.scheme": str(scope["scheme"])}
        return deps.enter_context(
            self._telemetry.tracing.span(method, attributes, kind=SpanKind.SERVER, context=joined(carrier))
        )

    def _route(self, scope: Scope) -> str:
        """The pattern of a request's path; what no route has taken is `other`."""
        endpoint, app = scope.get("endpoint"), scope.get("app")
        if endpoint is None or app is None:
            return "other"
        if not self._routes:
            routes = cast("list[BaseRoute]", app.routes)
            endpoints = (
                (cast("Any", getattr(route, "endpoint", None)), getattr(route, "path", "")) for route in routes
            )
            self._routes = {id(end): path for end, path in endpoints if end is not None}
        return self._routes.get(id(endpoint), "other")


@contextmanager
def gateway_metrics(telemetry: Telemetry, feeds: Feeds) -> Generator[None]:
    """Within, who asks this process for metrics is told of who watches."""
    if telemetry.exposition is None:
        yield
        return
    from prometheus_client.metrics_core import GaugeMetricFamily

    async def watching() -> list[Metric]:
        return [
            GaugeMetricFamily("fleet_http_watchers", "Event streams and WebSockets that are served.", feeds.watchers),
            GaugeMetricFamily("fleet_http_feeds", "Executions that they watch.", feeds.size),
        ]

    with telemetry.exposition.source("gateway", watching):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayDeps:
    """What the gateway is made from.

    Attributes:
        settings: What the installation decides.
        upstream: The services behind it.
        token: The gateway's own; without `authenticator` what callers must show. None lets everybody in.
        ready: Whether the services behind it can do their work now.
        keys: Where answers to idempotency keys are kept.
        authenticator: Knows callers by their tokens; None: there is one token.
        check_seconds: Between two looks at whether a watcher may still be in.
    """

    settings: Settings
    upstream: Upstream
    token: str | None
    ready: Callable[[], Awaitable[bool]]
    keys: KeyValue
    authenticator: Authenticator | None = None
    check_seconds: float = CHECK_SECONDS


def gateway_app(deps: GatewayDeps) -> Starlette:
    """The application; whatever serves it runs its lifespan."""
    streams = Streams(deps.upstream, max_watchers=deps.settings.http_max_watchers)
    app = Starlette(
        routes=[
            *_routes(deps),
            *session_routes(deps.token, deps.authenticator, grpc=deps.settings.orchestrator_url),
            *rest_routes(deps.upstream),
            *streams.routes(),
        ],
        middleware=[
            Middleware(Observed, telemetry=own_telemetry()),
            *access_middleware(
                deps.settings, deps.token, deps.keys, deps.authenticator, check_seconds=deps.check_seconds
            ),
        ],
        exception_handlers=dict(HANDLERS),
    )
    # A redirection names our own scheme, which behind a proxy that ends TLS is the wrong one.
    app.router.redirect_slashes = False
    # Ended before the server is: it waits for who still watches.
    app.state.streams = streams
    return app


def _routes(deps: GatewayDeps) -> list[BaseRoute]:
    async def health(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(_: Request) -> Response:
        answers = await deps.ready()
        return JSONResponse({"status": "ready" if answers else "not ready"}, status_code=200 if answers else 503)

    return [Route("/health", health), Route("/ready", ready)]
