"""The gateway as an ASGI application: its rooms, put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.access.stay import CHECK_SECONDS
from services.auth import Authenticator
from services.gateway.access import access_middleware, session_routes
from services.gateway.observing import Observed
from services.gateway.problems import HANDLERS
from services.gateway.rest.routes import rest_routes
from services.gateway.streams import Streams
from services.gateway.upstream import Upstream
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import own_telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the gateway's rooms are made from.

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


def gateway_app(around: Surroundings) -> Starlette:
    """The application; whatever serves it runs its lifespan."""
    streams = Streams(around.upstream, max_watchers=around.settings.http_max_watchers)
    app = Starlette(
        routes=[
            *_routes(around),
            *session_routes(around.token, around.authenticator),
            *rest_routes(around.upstream),
            *streams.routes(),
        ],
        middleware=[
            Middleware(Observed, telemetry=own_telemetry()),
            *access_middleware(
                around.settings, around.token, around.keys, around.authenticator, check_seconds=around.check_seconds
            ),
        ],
        exception_handlers=dict(HANDLERS),
    )
    # A redirection names our own scheme, which behind a proxy that ends TLS is the wrong one.
    app.router.redirect_slashes = False
    # Ended before the server is: it waits for who still watches.
    app.state.streams = streams
    return app


def _routes(around: Surroundings) -> list[BaseRoute]:
    async def health(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(_: Request) -> Response:
        answers = await around.ready()
        return JSONResponse({"status": "ready" if answers else "not ready"}, status_code=200 if answers else 503)

    return [Route("/health", health), Route("/ready", ready)]
