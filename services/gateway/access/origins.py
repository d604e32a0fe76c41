"""The gateway's host names, the origins that may call it, and the headers of its responses.

A foreign site can resolve its own name to our address (DNS rebinding): its requests then differ from our own page's
only in `Host`. Any other page can send requests here too, but its `Origin` shows that. Pages in `http_origins` may use
CORS, with a bearer token and never with cookies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.problems import Refusal
from swe_ai_fleet.domain.command import address_of
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.settings import Settings, listed

Headers = Iterable[tuple[bytes, bytes]]
_AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(rb"(https?)://(.{1,262})")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_WILDCARDS = ("0.0.0.0", "[::]", "")  # noqa: S104  (names what is not a name)


def values(headers: Headers, name: bytes) -> list[bytes]:
    """The values of a header, in order."""
    return [value for key, value in headers if key == name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A host (in lower case, IPv6 in brackets) and its port; None is the scheme's default."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: bytes) -> Authority | None:
        """Parse `host[:port]`; None if it is invalid."""
        match = _AUTHORITY.fullmatch(text)
        if match is None:
            return None
        port = int(match[2]) if match[2] else None
        return None if port is not None and port > 65_535 else cls(host=match[1].decode().lower(), port=port)

    def port_of(self, scheme: str) -> int:
        return _DEFAULT_PORTS[scheme] if self.port is None else self.port


class Origin(StrEnum):
    """The page that sent a request."""

    OURS = "ours"
    NAMED = "named"
    """One of `http_origins`."""
    NONE = "none"
    """No page, or a same-origin GET, which has no `Origin`."""


class OriginPolicy:
    """Checks `Host` and `Origin`."""

    def __init__(self, settings: Settings) -> None:
        self._names: list[Authority] = []
        for name in listed(settings.http_hosts):
            if (authority := Authority.parse(name.encode())) is None:
                hint = "such as fleet.example.org:8443"
                raise InvalidRequest(f"{name[:100]!r} is not a host", field="http_hosts", hint=hint)
            self._names.append(authority)
        bound = Authority.parse(settings.http_address.encode())
        if bound is not None and bound.host not in _WILDCARDS and bound.port:
            self._names.append(bound)
        self._origins = {origin.rstrip("/").lower().encode() for origin in listed(settings.http_origins)}

    def host(self, headers: Headers, server: Sequence[object] | None) -> Authority:
        """The host of a request, which must be one of ours. Raises Refusal.

        Args:
            server: (address, port) at which the request arrived.
        """
        hosts = values(headers, b"host")
        host = Authority.parse(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            raise Refusal(400, "the Host header must be a host and port", field="host")
        if any(host.host == name.host and name.port in (None, host.port) for name in self._names):
            return host
        if server is not None and _is_at(host, str(server[0]), server[1]):
            return host
        raise Refusal(
            421,
            "this gateway does not serve that host",
            field="host",
            hint="use the address it listens on, or name the host in FLEET_HTTP_HOSTS",
        )

    def origin(self, headers: Headers, host: Authority) -> Origin:
        """The page that sent a request to one of our hosts. Raises Refusal for a foreign page."""
        origins = values(headers, b"origin")
        if not origins:
            return Origin.NONE
        if len(origins) == 1:
            if origins[0].lower() in self._origins:
                return Origin.NAMED
            match = _ORIGIN.fullmatch(origins[0])
            authority = Authority.parse(match[2]) if match else None
            if match and authority:
                scheme = match[1].decode()
                if (authority.host, authority.port_of(scheme)) == (host.host, host.port_of(scheme)):
                    return Origin.OURS
        raise foreign()


def foreign() -> Refusal:
    """The refusal of a request from a foreign page."""
    return Refusal(
        403,
        "cross-origin requests are not allowed",
        field="origin",
        hint="add the origin to FLEET_HTTP_ORIGINS and send the token as a bearer token",
    )


def _is_at(host: Authority, address: str, port: object) -> bool:
    if host.port_of("http") != port:
        return False
    if (arrived := address_of(address.partition("%")[0])) is None:
        return False
    if host.host == (f"[{arrived}]" if arrived.version == 6 else str(arrived)):
        return True
    return arrived.is_loopback and host.host in _LOOPBACK_NAMES


_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_REQUEST_HEADERS = "Authorization, Content-Type, Accept, Idempotency-Key, Fleet-Caller, Last-Event-ID, Range"
_RESPONSE_HEADERS = (
    "Content-Range, Idempotency-Kept, Idempotency-Replayed, Location, RateLimit, RateLimit-Policy, Retry-After"
)
_KEPT_SECONDS = 600


def shared(headers: Headers, origin: Origin) -> list[tuple[str, str]]:
    """The headers that let a named page read a response; for others only `Vary`, for caches."""
    vary = ("Vary", "Origin")
    if origin is not Origin.NAMED:
        return [vary]
    page = values(headers, b"origin")[0].decode("latin-1")
    return [("Access-Control-Allow-Origin", page), ("Access-Control-Expose-Headers", _RESPONSE_HEADERS), vary]


def preflight(origin: Origin) -> Response:
    """The response to a CORS preflight request. Raises Refusal."""
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
    """Whether a request is a CORS preflight."""
    return method == "OPTIONS" and bool(values(headers, b"access-control-request-method"))


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = {
    b"content-security-policy": CONTENT_SECURITY_POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), microphone=(), geolocation=(), payment=(), usb=(), serial=(), hid=(), midi=()",
}
_NOT_KEPT = (b"cache-control", b"no-store")


class SecurityHeaders:
    """Adds `ALWAYS` to all responses, errors included, unless the route has set a header itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        required = [*ALWAYS.items(), _NOT_KEPT] if is_api(scope["path"]) else list(ALWAYS.items())

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", ())}
                message = _with(message, [(name, value) for name, value in required if name not in present])
            await send(message)

        await self._app(scope, receive, answering)


def adding(send: Send, headers: Iterable[tuple[str, str]]) -> Send:
    """A `send` that adds headers to the response."""
    more = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]

    async def answering(message: Message) -> None:
        await send(_with(message, more) if message["type"] == "http.response.start" else message)

    return answering


def is_api(path: str) -> bool:
    """Whether a path belongs to the API, not to the page."""
    return path == "/api" or path.startswith("/api/")


def _with(message: Message, headers: list[tuple[bytes, bytes]]) -> Message:
    return {**message, "headers": [*message.get("headers", ()), *headers]}
