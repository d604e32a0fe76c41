"""What nobody expected, at the gateway's edge."""

from __future__ import annotations

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.problems import problem

_log = structlog.get_logger()


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
