"""Access to the gateway: credentials, origins and rate limits; `/api/session`, which exchanges a token for a cookie."""

from __future__ import annotations

from typing import cast

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.auth import CHECK_SECONDS
from services.gateway.access.credentials import (
    SECONDS,
    AuthenticatedCaller,
    CredentialChecker,
    Shown,
    cookie_name,
    media_type,
    set_cookie,
)
from services.gateway.access.guard import AuthMiddleware
from services.gateway.access.limits import Buckets, peer
from services.gateway.access.origins import Authority, OriginPolicy, SecurityHeaders
from services.gateway.problems import BugMiddleware, Refusal
from swe_ai_fleet.domain.json_values import json_object
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.settings import Settings

REFUSALS_PER_MINUTE = 10
"""Wrong tokens that one address may try per minute; after that, even the right one is refused."""


def session_routes(credentials: CredentialChecker, *, grpc: str = "") -> list[BaseRoute]:
    """The routes of sessions, behind the auth middleware.

    `grpc` is the orchestrator's address, for callers.
    """
    routes = _SessionRoutes(credentials, grpc)
    return [
        Route("/api/session", routes.open, methods=["POST"]),
        Route("/api/session", routes.show, methods=["GET"]),
        Route("/api/session", routes.end, methods=["DELETE"]),
    ]


class _SessionRoutes:
    def __init__(self, credentials: CredentialChecker, grpc: str) -> None:
        self._credentials = credentials
        self._grpc = grpc
        self._refusals = Buckets(REFUSALS_PER_MINUTE)

    async def open(self, request: Request) -> Response:
        """POST {token}: open a session for the holder of the token."""
        token = _token(await request.body(), media_type(request.headers.raw))
        address = peer(request.client.host if request.client else "")
        allowance = self._refusals.look(address)
        if not allowance.admitted:
            raise Refusal(429, "too many wrong tokens from this address", retry_after_seconds=allowance.seconds)
        name, secure = _cookie(request)
        value = await self._credentials.new_session(token, name)
        if value is None:
            self._refusals.take(address)
            raise Refusal(401, "wrong token", field="token", hint="`fleet open` prints the address with the right one")
        answer = JSONResponse({"authenticated": True, "by": Shown.COOKIE if value else Shown.NOTHING})
        if value:
            answer.headers.append("set-cookie", set_cookie(name, value, seconds=SECONDS, secure=secure))
        return answer

    async def show(self, request: Request) -> Response:
        """GET: the caller, the kind and expiry of its credentials, and the fleet's gRPC address."""
        authenticated = cast("AuthenticatedCaller", request.state.authenticated)
        principal = authenticated.principal
        fields: dict[str, object] = {
            "authenticated": True,
            "by": authenticated.by,
            "tenant": principal.tenant,
            "name": principal.name,
            "roles": sorted(principal.roles),
        }
        if self._grpc:
            fields["grpc"] = self._grpc
        if authenticated.expires:
            fields["expires_at_ms"] = authenticated.expires * 1000
        return JSONResponse(fields)

    async def end(self, request: Request) -> Response:
        """DELETE: remove the session's cookie from the browser."""
        answer = Response(status_code=204)
        for secure in (False, True):
            name, _ = _cookie(request, secure=secure)
            answer.headers.append("set-cookie", set_cookie(name, "", seconds=0, secure=secure))
        return answer


def _cookie(request: Request, *, secure: bool | None = None) -> tuple[str, bool]:
    """The cookie's name for the request's host, and whether it is sent over https only.

    Behind a proxy that ends TLS, only `Origin` shows that the browser uses https.
    """
    if secure is None:
        secure = request.url.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")
    host = Authority.parse(request.headers["host"].encode("latin-1"))
    assert host is not None, "checked by the auth middleware"
    return cookie_name(host, secure=secure), secure


def _token(body: bytes, kind: bytes) -> str:
    if kind != b"application/json":
        raise Refusal(415, "the body is not JSON", field="content-type", hint="application/json")
    sign_in = json_object(body)
    token = sign_in.get("token")
    if set(sign_in) != {"token"} or not isinstance(token, str) or not token.isascii() or not token:
        raise Refusal(400, "the body must be an object with a token", field="token", hint='send {"token": "…"}')
    return token


def access_middleware(
    settings: Settings, credentials: CredentialChecker, keys: KeyValue, *, check_seconds: float = CHECK_SECONDS
) -> list[Middleware]:
    """The middleware of all routes, outermost first; see `AuthMiddleware` for the arguments. Raises InvalidRequest."""
    return [
        Middleware(SecurityHeaders),
        Middleware(BugMiddleware),
        Middleware(
            AuthMiddleware,
            policy=OriginPolicy(settings),
            per_minute=settings.http_requests_per_minute,
            credentials=credentials,
            keys=keys,
            check_seconds=check_seconds,
        ),
    ]
