"""A server that webhooks are sent to: it remembers what came, and answers as it is told."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from swe_ai_fleet.extensions.webhooks import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a message is answered."""

    status: int = 200
    headers: Mapping[str, str] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as it came in."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def event_id(self) -> str:
        return self.headers["webhook-id"]

    def checked(self, secret: str) -> str:
        """Its id; raises where its signature does not fit."""
        return verify(secret, self.headers, self.body)


class WebhookReceiver:
    """Answers 200 on every path, unless `answers` has something else for the next message there.

    Messages on a path in `held` are answered only once its event is set.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self.held: dict[str, asyncio.Event] = {}
        self.address = ""
        self._arrived = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for event in self.held.values():
            event.set()
        if self._runner is not None:
            await self._runner.cleanup()

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def on(self, path: str) -> list[Received]:
        return [one for one in self.received if one.path == path]

    async def until(self, path: str, count: int) -> list[Received]:
        """What came on a path, once so much of it has."""
        async with asyncio.timeout(20), self._arrived:
            await self._arrived.wait_for(lambda: len(self.on(path)) >= count)
        return self.on(path)

    async def _take(self, request: web.Request) -> web.Response:
        headers: dict[str, Any] = {name.lower(): value for name, value in request.headers.items()}
        taken = Received(path=request.path, headers=headers, body=await request.read())
        async with self._arrived:
            self.received.append(taken)
            self._arrived.notify_all()
        if taken.path in self.held:
            await self.held[taken.path].wait()
        waiting = self.answers[taken.path]
        answer = waiting.popleft() if waiting else Answer()
        return web.Response(status=answer.status, headers=answer.headers, text=answer.text)
