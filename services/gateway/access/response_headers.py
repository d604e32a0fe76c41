"""Headers that every answer of the gateway carries."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class SecureAnswers:
    """Adds them to what the application answers, its faults included; what a route sets itself stands.

    Args:
        app: Everything else.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wanted = [*ALWAYS.items(), _NOT_KEPT] if is_api(scope["path"]) else list(ALWAYS.items())

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message.get("headers", ())}
                message = _with(message, [(name, value) for name, value in wanted if name not in there])
            await send(message)

        await self._app(scope, receive, answering)


def adding(send: Send, headers: Iterable[tuple[str, str]]) -> Send:
    """A `send` that adds headers to the answer."""
    more = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]

    async def answering(message: Message) -> None:
        await send(_with(message, more) if message["type"] == "http.response.start" else message)

    return answering


def is_api(path: str) -> bool:
    """Whether a path is one of the API's, never of the page's."""
    return path == "/api" or path.startswith("/api/")


def _with(message: Message, headers: list[tuple[bytes, bytes]]) -> Message:
    return {**message, "headers": [*message.get("headers", ()), *headers]}
