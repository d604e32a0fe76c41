"""Authentication of every request; a stream ends soon after the credentials of its watcher.

The gateway's auth middleware: every request and every WebSocket passes here before any route sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from starlette.requests import ClientDisconnect, Request
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
from services.gateway.access.page import Page
from services.gateway.problems import Refusal, refusal_of
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.ports import KeyValue

OPEN_PATHS = ("/health", "/ready")
"""For probes: asked without a token, under any name, as often as they like."""
SESSION_PATH = "/api/session"
_UPLOADS = ("/api/repositories",)
"""Whose bodies are read piece by piece."""
_SECRETS = ("/api/webhooks",)
"""Whose answers hold what is told once."""
_EVENTS = b"text/event-stream"
_SESSION_BYTES = 4_096
_SESSION_SECONDS = 10.0
NO_TOKEN, FOREIGN, BAD_REQUEST, TRY_LATER = 4401, 4403, 4400, 1013
"""Close codes of WebSockets."""


class AuthMiddleware:
    """Admits authenticated requests, and describes the caller in `scope["state"]`: token, caller, authenticated.

    Paths outside `/api/` are the page, which is public; every other route needs a token.

    Args:
        check_seconds: Between two checks that a watcher is still admitted.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        places: origins.OriginPolicy,
        per_minute: int,
        credentials: CredentialChecker,
        keys: KeyValue,
        check_seconds: float,
    ) -> None:
        self._app = app
        self._places = places
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
        host = self._places.host(headers, scope["server"])
        origin = self._places.origin(headers, host)
        if not origins.is_api(path):
            check_embedding(headers)
            self._count(scope, None)
            await (await self._page.answer(Request(scope, receive)))(scope, receive, send)
            return
        send = origins.adding(send, origins.shared(headers, origin))
        try:
            authenticated = await self._credentials.authenticate(headers, host, origin)
            # Before it is counted: what strangers' pages send must not use up what our own page may send.
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
            # The store of the keys does not answer.
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
            host = self._places.host(headers, scope["server"])
            origin = self._places.origin(headers, host)
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
            # The authenticator cannot be asked now.
            await _close(Refusal(503, error.message), receive, send)
        else:
            if not await self._stays(scope, self._app(scope, receive, send)):
                # The client may be going just now.
                with suppress(OSError, RuntimeError):
                    await send({"type": "websocket.close", "code": NO_TOKEN, "reason": "the token is no longer valid"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; a stream of events ends when what let its watcher in does."""
        if not any(_EVENTS in value.lower() for value in origins.values(scope["headers"], b"accept")):
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        if not await self._stays(scope, self._app(scope, receive, sending)):
            if not begun:
                raise unauthenticated()
            # No end-of-stream event: the client reconnects and gets 401.
            with suppress(OSError, RuntimeError):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stays(self, scope: Scope, work: Awaitable[None]) -> bool:
        """Run work for as long as its caller stays admitted, cancelled then; whether it ended by itself."""
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
        """Take a request from its client's bucket; what the client is told of it. Raises Refusal."""
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
    """Whose requests are counted together: a known caller's from everywhere, others' by where they come from."""
    if authenticated is None:
        return f"out {address}"
    principal = authenticated.principal
    return f"in {address}" if principal.sole else f"as {principal.tenant} {principal.name}"


def _no_role() -> Refusal:
    return Refusal(
        403, "your token has no role here", field="authorization", hint="an operator grants roles in the access file"
    )


async def _close(refused: Refusal, receive: Receive, send: Send) -> None:
    """Take the connection and close it: a page cannot read why a handshake was refused."""
    codes = {401: NO_TOKEN, 403: FOREIGN, 421: FOREIGN, 429: TRY_LATER, 503: TRY_LATER}
    await receive()
    # The client may have gone already.
    with suppress(OSError):
        if refused.status == 429:
            # Whoever sends that many gets no connection for it.
            await send({"type": "websocket.close", "code": TRY_LATER})
            return
        await send({"type": "websocket.accept"})
        code = codes.get(refused.status, BAD_REQUEST)
        await send({"type": "websocket.close", "code": code, "reason": refused.detail[:120]})
