"""Errors for HTTP clients as problem documents (RFC 9457), which are made only here.

It also records requests for operators: counts by route and status, durations, and spans. Bugs are logged here, once,
and answered without their message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, cast

import grpc
import grpc.aio
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.auth import ID_CHARS
from services.errors import RETRY_SECONDS, status_code
from services.grpc_server import server_span
from swe_ai_fleet.contract import error_details
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.telemetry import Telemetry

MEDIA_TYPE = "application/problem+json"
CLIENT_GONE = 499
STATUSES: Mapping[str, int] = {
    "CANCELLED": CLIENT_GONE,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    # google.rpc.Code has 400 here, but the request is valid and only conflicts with the state of the resource.
    "FAILED_PRECONDITION": 409,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}
"""The HTTP status of each gRPC code."""
_CODES: Mapping[int, str] = {status: code for code, status in STATUSES.items()} | {
    400: "INVALID_ARGUMENT",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",
    416: "OUT_OF_RANGE",
    421: "FAILED_PRECONDITION",
    422: "ALREADY_EXISTS",
    500: "INTERNAL",
}
_GRPC_OWN: Mapping[str, str] = {
    "UNAVAILABLE": "the orchestrator does not answer",
    "DEADLINE_EXCEEDED": "the orchestrator did not answer in time",
    "UNIMPLEMENTED": "the orchestrator does not support this",
    "RESOURCE_EXHAUSTED": "the message is too large",
}
_RETRY_SECONDS: Mapping[int, int] = {STATUSES[code.name]: seconds for code, seconds in RETRY_SECONDS.items()}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PROBES = ("/health", "/ready")
_CARRIED = (b"traceparent", b"tracestate")
_log = structlog.get_logger()


class Refusal(Exception):
    """A request that the gateway refuses itself, such as with status 413, 415 or 416.

    Args:
        code: The name of the gRPC code; empty: the one for the status.
        retry_after_seconds: When to retry; None: the default for the status.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str = "",
        hint: str = "",
        code: str = "",
        retry_after_seconds: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self._code = code or _CODES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
        self._field, self._hint, self._headers = field, hint, headers
        self._retry_after_seconds = _RETRY_SECONDS.get(status) if retry_after_seconds is None else retry_after_seconds

    def document(self, instance: str) -> dict[str, object]:
        """The `application/problem+json` document for a request's path, without unknown fields."""
        fields: dict[str, object] = {
            "type": "about:blank",
            "title": _title(self.status),
            "status": self.status,
            "detail": self.detail,
            "code": self._code,
        }
        more = {"instance": instance, "field": self._field, "hint": self._hint}
        fields |= {name: text for name, text in more.items() if text}
        if self._retry_after_seconds is not None:
            fields["retry_after_seconds"] = self._retry_after_seconds
        return fields

    def answer(self, instance: str) -> Response:
        """The response with the problem document, and `Retry-After` and `WWW-Authenticate` if applicable."""
        content = json.dumps(self.document(instance), ensure_ascii=False)
        answer = Response(content, self.status, headers=self._headers, media_type=MEDIA_TYPE)
        answer.headers.setdefault("cache-control", "no-store")
        if self._retry_after_seconds is not None:
            answer.headers.setdefault("retry-after", str(self._retry_after_seconds))
        if self.status == HTTPStatus.UNAUTHORIZED:
            answer.headers.setdefault("www-authenticate", 'Bearer realm="fleet"')
        return answer


def refusal_of(error: grpc.aio.AioRpcError | FleetError, *, within: str = "") -> Refusal:
    """The refusal for an error of a service, or of the gateway itself.

    `within` is a prefix to remove from the field's name, such as `deliberate.`.
    """
    if isinstance(error, FleetError):
        code, field = status_code(error).name, error.field.removeprefix(within)
        return Refusal(STATUSES[code], error.message, code=code, field=field, hint=error.hint)
    # The gateway has not cancelled the call, so the server is shutting down.
    code = "UNAVAILABLE" if error.code() is grpc.StatusCode.CANCELLED else error.code().name
    details = error_details(error.trailing_metadata())
    if details is None:
        # gRPC's own messages contain addresses and source lines.
        return Refusal(STATUSES[code], _GRPC_OWN.get(code, "the orchestrator failed"), code=code)
    return Refusal(
        STATUSES[code],
        (error.details() or _title(STATUSES[code])).removesuffix(f" ({details.hint})"),
        code=code,
        field=details.field.removeprefix(within),
        hint=details.hint,
        retry_after_seconds=details.retry_seconds,
    )


def _title(status: int) -> str:
    return "Client Closed Request" if status == CLIENT_GONE else HTTPStatus(status).phrase


async def _on_fault(connection: HTTPConnection, error: Exception) -> Response:
    fault = cast("grpc.aio.AioRpcError | FleetError | Refusal", error)
    return (fault if isinstance(fault, Refusal) else refusal_of(fault)).answer(connection.url.path)


async def _on_http(connection: HTTPConnection, error: Exception) -> Response:
    """The response to Starlette's own exceptions: unknown path, method not allowed."""
    fault = cast("HTTPException", error)
    if fault.status_code in (204, 304):
        return Response(status_code=fault.status_code, headers=fault.headers)
    words = {
        404: "not found",
        405: f"{connection.scope.get('method', 'this')} is not allowed here",
    }
    refusal = Refusal(fault.status_code, words.get(fault.status_code, fault.detail), headers=fault.headers)
    return refusal.answer(connection.url.path)


HANDLERS: Mapping[Any, Any] = {
    grpc.aio.AioRpcError: _on_fault,
    FleetError: _on_fault,
    Refusal: _on_fault,
    HTTPException: _on_http,
}
"""Exception handlers for `Starlette(exception_handlers=…)`."""


class BugMiddleware:
    """Logs unexpected exceptions once, and answers them with 500, without their message."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            started = started or message["type"] in ("http.response.start", "websocket.accept")
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except ClientDisconnect:
            # There is no client to answer.
            return
        except Exception as fault:
            if scope["type"] == "lifespan":
                raise
            _log.exception(
                "a request failed with an internal error", path=scope.get("path"), fault=type(fault).__name__
            )
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1011})
            elif not started:
                bug = Refusal(500, "internal error; see the gateway's log")
                await bug.answer(str(scope.get("path", "")))(scope, receive, send)


class Observed:
    """The outermost ASGI middleware, which records requests, except probes; a WebSocket counts with status 101."""

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
            headers = cast("list[tuple[bytes, bytes]]", scope["headers"])
            carrier = {key.decode(): value.decode("latin-1") for key, value in headers if key in _CARRIED}
            attributes = {"http.request.method": method, "url.scheme": str(scope["scheme"])}
            span = server_span(self._telemetry, deps, method, attributes, carrier)
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

    def _route(self, scope: Scope) -> str:
        """The pattern of a request's route; `other` if no route matched."""
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
