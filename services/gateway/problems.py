"""Faults as HTTP clients get them: problem documents (RFC 9457), made here and nowhere else.

A bug ends here too: logged once, and answered without a word of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.errors import DOMAIN, RETRY_SECONDS, status_code
from swe_ai_fleet.domain.errors import FleetError

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
    # google.rpc.Code has 400 here. What is asked for is fine, only the state of the thing is in the way: a conflict.
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
_CODES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",
    416: "OUT_OF_RANGE",
    421: "FAILED_PRECONDITION",
    422: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    CLIENT_GONE: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_GRPC_OWN: Mapping[str, str] = {
    "UNAVAILABLE": "the service behind the gateway does not answer",
    "DEADLINE_EXCEEDED": "the service behind the gateway did not answer in time",
    "UNIMPLEMENTED": "the service behind the gateway does not offer this",
    "RESOURCE_EXHAUSTED": "the message is too large for the service behind the gateway",
}
_RETRY_SECONDS: Mapping[int, int] = {STATUSES[code.name]: seconds for code, seconds in RETRY_SECONDS.items()}
_DETAILS = "grpc-status-details-bin"
_log = structlog.get_logger()


class Refusal(Exception):
    """A request that the gateway does not pass on, or that HTTP itself has a status for: 413, 415, 416 and the like.

    Args:
        status: The HTTP status.
        detail: What is wrong, in words for the caller.
        field: What to change.
        hint: The way out.
        code: The gRPC code's name; empty: the one that belongs to the status.
        retry_after_seconds: When another try makes sense; None: what belongs to the status.
        headers: Further headers of the answer.
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
        self.status = status
        self.detail = detail
        self.field = field
        self.hint = hint
        self.code = code
        self.retry_after_seconds = retry_after_seconds
        self.headers = dict(headers or {})

    def answer(self, instance: str) -> Response:
        """The problem document; `instance` is the path that was asked for."""
        return problem(
            self.status,
            self.detail,
            code=self.code,
            field=self.field,
            hint=self.hint,
            retry_after_seconds=self.retry_after_seconds,
            instance=instance,
            headers=self.headers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What went wrong with a request.

    Attributes:
        status: The HTTP status.
        code: The gRPC code's name, such as `NOT_FOUND`.
        detail: What is wrong, in words for the caller.
        field: What to change; empty where it is no field.
        hint: The way out; empty where there is none to tell.
        retry_after_seconds: When another try makes sense; None: only after a change.
        instance: The path that was asked for.
    """

    status: int
    code: str
    detail: str
    field: str = ""
    hint: str = ""
    retry_after_seconds: int | None = None
    instance: str = ""

    def document(self) -> dict[str, object]:
        """As `application/problem+json`; what is not known is left out."""
        told: dict[str, object] = {
            "type": "about:blank",
            "title": _title(self.status),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if self.instance:
            told["instance"] = self.instance
        if self.field:
            told["field"] = self.field
        if self.hint:
            told["hint"] = self.hint
        if self.retry_after_seconds is not None:
            told["retry_after_seconds"] = self.retry_after_seconds
        return told

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The answer, with `Retry-After` and `WWW-Authenticate` where they belong."""
        answer = Response(
            json.dumps(self.document(), ensure_ascii=False), self.status, headers=headers, media_type=MEDIA_TYPE
        )
        answer.headers.setdefault("cache-control", "no-store")
        if self.retry_after_seconds is not None:
            answer.headers.setdefault("retry-after", str(self.retry_after_seconds))
        if self.status == HTTPStatus.UNAUTHORIZED:
            answer.headers.setdefault("www-authenticate", 'Bearer realm="fleet"')
        return answer


def problem(
    status: int,
    detail: str,
    *,
    code: str = "",
    field: str = "",
    hint: str = "",
    retry_after_seconds: int | None = None,
    instance: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem document of the gateway's own. `code` is by default the one that belongs to the status."""
    told = Problem(
        status=status,
        code=code or _CODES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL"),
        detail=detail,
        field=field,
        hint=hint,
        retry_after_seconds=_RETRY_SECONDS.get(status) if retry_after_seconds is None else retry_after_seconds,
        instance=instance,
    )
    return told.response(headers)


def problem_of(error: grpc.aio.AioRpcError | FleetError, *, instance: str = "", within: str = "") -> Response:
    """The answer to a request that ended with this fault.

    Args:
        error: What a service answered, or what the gateway found itself.
        instance: The path that was asked for.
        within: Left out in front of the field's name, such as `deliberate.`.
    """
    return told_of(error, instance=instance, within=within).response()


def told_of(error: grpc.aio.AioRpcError | FleetError, *, instance: str = "", within: str = "") -> Problem:
    """As `problem_of`, the document alone."""
    if isinstance(error, FleetError):
        code = status_code(error).name
        status = STATUSES[code]
        return Problem(
            status=status,
            code=code,
            detail=error.message,
            field=error.field.removeprefix(within),
            hint=error.hint,
            retry_after_seconds=_RETRY_SECONDS.get(status),
            instance=instance,
        )
    # A call that nobody cancelled here was let go by a server that ends.
    code = "UNAVAILABLE" if error.code() is grpc.StatusCode.CANCELLED else error.code().name
    status = STATUSES[code]
    rich = _rich(error)
    if rich is None:
        # gRPC's own words name addresses and source lines.
        detail, rich = _GRPC_OWN.get(code, "the service behind the gateway failed"), _Rich()
    else:
        detail = (error.details() or _title(status)).removesuffix(f" ({rich.hint})")
    return Problem(
        status=status,
        code=code,
        detail=detail,
        field=rich.field.removeprefix(within),
        hint=rich.hint,
        retry_after_seconds=_RETRY_SECONDS.get(status) if rich.retry_seconds is None else rich.retry_seconds,
        instance=instance,
    )


@dataclass(slots=True, kw_only=True)
class _Rich:
    field: str = ""
    hint: str = ""
    retry_seconds: int | None = None


def _rich(error: grpc.aio.AioRpcError) -> _Rich | None:
    """What one of our services says beyond code and message; None where none of them answered."""
    trailer = cast("Sequence[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    packed = next((value for key, value in trailer if key == _DETAILS and isinstance(value, bytes)), None)
    if packed is None:
        return None
    found, ours = _Rich(), False
    try:
        details = status_pb2.Status.FromString(packed).details
    except DecodeError:
        return None
    for detail in details:
        info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            ours = info.domain == DOMAIN
            found.field = found.field or info.metadata.get("field", "")
            found.hint = info.metadata.get("hint", "")
        elif detail.Unpack(request):
            found.field = next((violation.field for violation in request.field_violations), found.field)
        elif detail.Unpack(retry):
            found.retry_seconds = max(retry.retry_delay.seconds, 1)
    return found if ours else None


def _title(status: int) -> str:
    if status == CLIENT_GONE:
        return "Client Closed Request"
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


async def _on_fault(connection: HTTPConnection, error: Exception) -> Response:
    return problem_of(cast("grpc.aio.AioRpcError | FleetError", error), instance=connection.url.path)


async def _on_refusal(connection: HTTPConnection, error: Exception) -> Response:
    return cast("Refusal", error).answer(connection.url.path)


async def _on_http(connection: HTTPConnection, error: Exception) -> Response:
    """What Starlette raises itself: no such path, no such method."""
    fault = cast("HTTPException", error)
    if fault.status_code in (204, 304):
        return Response(status_code=fault.status_code, headers=fault.headers)
    words = {
        404: "nothing answers at this path",
        405: f"{connection.scope.get('method', 'this')} is not done here",
    }
    return problem(
        fault.status_code,
        words.get(fault.status_code, fault.detail),
        instance=connection.url.path,
        headers=fault.headers,
    )


HANDLERS: Mapping[Any, Any] = {
    grpc.aio.AioRpcError: _on_fault,
    FleetError: _on_fault,
    Refusal: _on_refusal,
    HTTPException: _on_http,
}
"""Exception handlers for `Starlette(exception_handlers=…)`."""


class BugMiddleware:
    """What nobody expected ends here: logged once, answered with 500 and without a word of its own.

    Args:
        app: Everything else.
    """

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
            # Nobody is there to be told.
            return
        except Exception as fault:
            if scope["type"] == "lifespan":
                raise
            _log.exception("a request met a fault of ours", path=scope.get("path"), fault=type(fault).__name__)
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1011})
            elif not started:
                detail = "an internal fault; the gateway's log has it"
                await problem(500, detail, instance=str(scope.get("path", "")))(scope, receive, send)
