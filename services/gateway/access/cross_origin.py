"""CORS for the pages that `http_origins` names: with a bearer token, never with cookies."""

from __future__ import annotations

from starlette.responses import Response

from services.gateway.access.places import Headers, Origin, foreign, values

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_REQUEST_HEADERS = "Authorization, Content-Type, Accept, Idempotency-Key, Fleet-Caller, Last-Event-ID, Range"
_RESPONSE_HEADERS = (
    "Content-Range, Idempotency-Kept, Idempotency-Replayed, Location, RateLimit, RateLimit-Policy, Retry-After"
)
_KEPT_SECONDS = 600


def shared(headers: Headers, origin: Origin) -> list[tuple[str, str]]:
    """What lets a named page read an answer; for others nothing, but that caches must not mix them up."""
    vary = ("Vary", "Origin")
    if origin is not Origin.NAMED:
        return [vary]
    page = values(headers, b"origin")[0].decode("latin-1")
    return [("Access-Control-Allow-Origin", page), ("Access-Control-Expose-Headers", _RESPONSE_HEADERS), vary]


def preflight(origin: Origin) -> Response:
    """The answer to a browser that asks whether a page may send what it wants to send. Raises Refusal."""
    if origin is not Origin.NAMED:
        raise foreign()
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _REQUEST_HEADERS,
            "Access-Control-Max-Age": str(_KEPT_SECONDS),
        },
    )


def is_preflight(method: str, headers: Headers) -> bool:
    """Whether a request is such a question."""
    return method == "OPTIONS" and bool(values(headers, b"access-control-request-method"))
