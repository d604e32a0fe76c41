"""The gateway's auth middleware: authenticates every request and WebSocket before any route, and serves the page.

A stream ends soon after its watcher's credentials.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.access import limits, origins
from services.gateway.access.credentials import (
    AuthenticatedCaller,
    CredentialChecker,
    Shown,
    caller,
    check_embedding,
    check_intent,
    check_site,
    has_body,
    unauthenticated,
)
from services.gateway.access.idempotency import AnswerStore, key_of
from services.gateway.access.origins import Origin
from services.gateway.problems import Refusal, refusal_of
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.ports import KeyValue

DIRECTORY = Path(__file__).resolve().parent.parent / "page"
_INDEX = "index.html"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
_PACKED = frozenset({".html", ".js", ".css", ".svg", ".txt", ".webmanifest"})
_LEAST_PACKED = 1_024
"""Bytes; smaller files do not benefit."""
_NOT_BUILT = """The page of this gateway has not been built: there is no index.html in services/gateway/page.

Build it from web/ with `npm ci` and `npm run build`. The API under /api works without it; see /api/openapi.json.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asset:
    """A file; `packed` is its gzip form, None if that is not smaller."""

    content: bytes
    media_type: str
    tag: str
    packed: bytes | None = None


class Page:
    """Serves the files of one directory, without subdirectories.

    Files are read when they are requested, so that a new build takes effect at once.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], _Asset]] = {}

    async def answer(self, request: Request) -> Response:
        """The response with a file, or with the page itself for its other paths. Raises Refusal."""
        if request.method not in ("GET", "HEAD"):
            raise Refusal(
                405,
                f"{request.method} is not allowed here",
                hint="the API is under /api",
                headers={"Allow": "GET, HEAD"},
            )
        name = request.url.path.removeprefix("/") or _INDEX
        asset = await asyncio.to_thread(self._read, name)
        if asset is None and "text/html" in request.headers.get("accept", ""):
            asset, name = await asyncio.to_thread(self._read, _INDEX), _INDEX
        if asset is None:
            if name == _INDEX:
                return PlainTextResponse(_NOT_BUILT, 404)
            raise Refusal(404, "file not found", hint="the API is under /api")
        # File names stay the same in new builds, so browsers must revalidate at every use.
        content, tag = asset.content, asset.tag
        headers = {"cache-control": "no-cache"}
        if asset.packed is not None:
            headers["vary"] = "Accept-Encoding"
            if _takes_gzip(request.headers.get("accept-encoding", "")):
                # Files of the page are public, so their compressed size reveals no secret.
                # Other bytes are another representation, with another tag (RFC 9110, 8.8.3.3).
                content, tag = asset.packed, f'{asset.tag[:-1]}-gzip"'
                headers["content-encoding"] = "gzip"
        headers["etag"] = tag
        etags = request.headers.get("if-none-match", "")
        if tag in (etag.strip().removeprefix("W/") for etag in etags[:1000].split(",")):
            headers.pop("content-encoding", None)
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=asset.media_type, headers=headers)

    def _read(self, name: str) -> _Asset | None:
        path = DIRECTORY / name
        if not _NAME.fullmatch(name) or path.suffix not in _TYPES or path.is_symlink():
            return None
        try:
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_size)
            cached = self._known.get(name)
            if cached is not None and cached[0] == stamp:
                return cached[1]
            content = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            return None
        asset = _Asset(
            content=content,
            media_type=_TYPES[path.suffix],
            tag=f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            packed=_packed(content) if path.suffix in _PACKED else None,
        )
        self._known[name] = (stamp, asset)
        return asset


def _packed(content: bytes) -> bytes | None:
    """The content in gzip, always the same bytes; None if it is not worth it."""
    if len(content) < _LEAST_PACKED:
        return None
    packed = gzip.compress(content, compresslevel=9, mtime=0)
    return packed if len(packed) < len(content) else None


def _takes_gzip(accepted: str) -> bool:
    """Whether Accept-Encoding allows gzip, by name or `*`, with a weight above 0 (RFC 9110, 12.5.3)."""
    weights: dict[str, bool] = {}
    for part in accepted[:1000].lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = re.fullmatch(r"\s*q\s*=\s*0(\.0{0,3})?\s*", weight) is None
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))


OPEN_PATHS = ("/health", "/ready")
"""Paths for probes: without a token, for any host, without a rate limit."""
SESSION_PATH = "/api/session"
_UPLOADS = ("/api/repositories",)
"""Paths whose request bodies are streamed."""
_SECRETS = ("/api/webhooks",)
"""Paths whose responses hold secrets that are shown once."""
_EVENTS = b"text/event-stream"
_SESSION_BYTES = 4_096
_SESSION_SECONDS = 10.0
NO_TOKEN, FOREIGN, BAD_REQUEST, TRY_LATER = 4401, 4403, 4400, 1013
"""Close codes of WebSockets."""


class AuthMiddleware:
    """Admits authenticated requests, and describes the caller in `scope["state"]`: token, caller, authenticated.

    Paths outside `/api/` are the page, which is public; every other route needs a token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        policy: origins.OriginPolicy,
        per_minute: int,
        credentials: CredentialChecker,
        keys: KeyValue,
        check_seconds: float,
    ) -> None:
        self._app = app
        self._policy = policy
        self._credentials = credentials
        self._check_seconds = check_seconds
        self._buckets = limits.Buckets(per_minute)
        self._page = Page()
        self._answers = AnswerStore(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        else:
            try:
                await self._request(scope, receive, send)
            except Refusal as refused:
                await refused.answer(scope["path"])(scope, receive, send)
            except limits.ClientGone:
                return

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, method, path = scope["headers"], scope["method"], scope["path"]
        host = self._policy.host(headers, scope["server"])
        origin = self._policy.origin(headers, host)
        if not origins.is_api(path):
            check_embedding(headers)
            self._count(scope, None)
            await (await self._page.answer(Request(scope, receive)))(scope, receive, send)
            return
        send = origins.adding(send, origins.shared(headers, origin))
        try:
            authenticated = await self._credentials.authenticate(headers, host, origin)
            # Before it is counted: requests from foreign pages must not use up the limit of our own page.
            check_site(headers, authenticated, origin)
            send = origins.adding(send, self._count(scope, authenticated))
            if origins.is_preflight(method, headers):
                await origins.preflight(origin)(scope, receive, send)
                return
            signing_in = path == SESSION_PATH and method == "POST"
            if authenticated is None and not signing_in:
                raise unauthenticated()
            if signing_in and origin is Origin.NAMED:
                raise origins.foreign()
            if authenticated is not None and not authenticated.principal.roles and path != SESSION_PATH:
                raise _no_role()
            check_intent(method, headers, authenticated or AuthenticatedCaller(by=Shown.NOTHING, token=""), origin)
            scope.setdefault("state", {}).update(
                token=authenticated.token if authenticated else "", caller=caller(headers), authenticated=authenticated
            )
            await self._pass_on(scope, receive, send, signing_in=signing_in)
        except Refusal as refused:
            if refused.status == 413:
                await limits.answer_early(refused.answer(path), scope, receive, send)
            else:
                await refused.answer(path)(scope, receive, send)
        except FleetError as error:
            # The store of idempotency keys does not answer.
            await refusal_of(error).answer(path)(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, *, signing_in: bool) -> None:
        headers = scope["headers"]
        if scope["path"] in _UPLOADS:
            pieces = limits.TimedReceive(receive)
            try:
                await self._app(scope, pieces, send)
            except ClientDisconnect:
                if pieces.stalled:
                    raise limits.too_slow("the upload stalled") from None
                raise
            return
        body = b""
        if signing_in:
            body = await limits.read_body(receive, headers, limit=_SESSION_BYTES, seconds=_SESSION_SECONDS)
        elif has_body(headers):
            body = await limits.read_body(receive, headers)
        again = limits.read_again(body, receive)
        key = key_of(headers) if scope["method"] == "POST" and not signing_in else None
        if key is None:
            await self._serve(scope, again, send)
            return
        secret = scope["path"] in _SECRETS
        await self._answers.once(key, self._serve, scope, again, send, body=body, secret=secret)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        try:
            host = self._policy.host(headers, scope["server"])
            origin = self._policy.origin(headers, host)
            authenticated = await self._credentials.authenticate(headers, host, origin)
            if authenticated is not None and authenticated.by is Shown.COOKIE and origin is not Origin.OURS:
                raise origins.foreign()
            check_site(headers, authenticated, origin)
            self._count(scope, authenticated)
            if authenticated is None:
                raise unauthenticated()
            if not authenticated.principal.roles:
                raise _no_role()
            scope.setdefault("state", {}).update(
                token=authenticated.token, caller=caller(headers), authenticated=authenticated
            )
        except Refusal as refused:
            await _close(refused, receive, send)
        except FleetError as error:
            # Credentials cannot be checked now.
            await _close(Refusal(503, error.message), receive, send)
        else:
            if not await self._run_while_admitted(scope, self._app(scope, receive, send)):
                # The client may be disconnecting.
                with suppress(OSError, RuntimeError):
                    await send({"type": "websocket.close", "code": NO_TOKEN, "reason": "the token is no longer valid"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application; a stream of events ends with its watcher's access."""
        if not any(_EVENTS in value.lower() for value in origins.values(scope["headers"], b"accept")):
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        if not await self._run_while_admitted(scope, self._app(scope, receive, sending)):
            if not begun:
                raise unauthenticated()
            # No end-of-stream event: the client reconnects and gets 401.
            with suppress(OSError, RuntimeError):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _run_while_admitted(self, scope: Scope, work: Awaitable[None]) -> bool:
        """Run work until it ends (True), or cancel it once its caller is no longer admitted (False)."""
        working = asyncio.ensure_future(work)
        try:
            while True:
                await asyncio.wait((working,), timeout=self._check_seconds)
                if working.done():
                    working.result()
                    return True
                if not await self._credentials.may_stay(scope["state"]["authenticated"]):
                    return False
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    def _count(self, scope: Scope, authenticated: AuthenticatedCaller | None) -> list[tuple[str, str]]:
        """Count a request in its client's bucket; the headers with the rate limit's state. Raises Refusal."""
        address = scope["client"][0] if scope["client"] else ""
        allowance = self._buckets.take(_bucket(authenticated, limits.peer(address)))
        limit_headers = [
            ("RateLimit-Policy", f'"requests";q={self._buckets.per_minute};w=60'),
            ("RateLimit", f'"requests";r={allowance.remaining};t={allowance.seconds}'),
        ]
        if not allowance.admitted:
            raise Refusal(
                429,
                f"more than {self._buckets.per_minute} requests in a minute",
                hint="send fewer, or raise FLEET_HTTP_REQUESTS_PER_MINUTE",
                retry_after_seconds=allowance.seconds,
                headers=dict(limit_headers),
            )
        return limit_headers


def _bucket(authenticated: AuthenticatedCaller | None, address: str) -> str:
    """The bucket of a request: one for each authenticated caller, and for others one for each address."""
    if authenticated is None:
        return f"out {address}"
    principal = authenticated.principal
    return f"in {address}" if principal.sole else f"as {principal.tenant} {principal.name}"


def _no_role() -> Refusal:
    return Refusal(
        403, "your token has no role here", field="authorization", hint="an operator grants roles in the access file"
    )


async def _close(refused: Refusal, receive: Receive, send: Send) -> None:
    """Accept the connection and close it with a reason, since a page cannot read why a handshake was refused."""
    codes = {401: NO_TOKEN, 403: FOREIGN, 421: FOREIGN, 429: TRY_LATER, 503: TRY_LATER}
    await receive()
    # The client may have gone already.
    with suppress(OSError):
        if refused.status == 429:
            # A client above the rate limit gets no connection.
            await send({"type": "websocket.close", "code": TRY_LATER})
            return
        await send({"type": "websocket.accept"})
        code = codes.get(refused.status, BAD_REQUEST)
        await send({"type": "websocket.close", "code": code, "reason": refused.detail[:120]})
