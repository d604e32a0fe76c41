"""A server outside of the fleet that counts what agents tell it: an effect that no restart takes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType
from typing import Self

from aiohttp import web

_ANSWER_SECONDS = 0.3


class Witness:
    """Counts posts by place while its context lasts; a place answers whether it was told."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        """How often each `<task>/<agent>` was told."""
        self.url = ""
        self._runner: web.AppRunner | None = None

    @property
    def host(self) -> str:
        """Host and port, as a pattern of hosts that tools may reach."""
        return self.url.removeprefix("http://").partition("/")[0]

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/told/{task}/{agent}", self._post)
        application.router.add_get("/told/{task}/{agent}", self._get)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=256).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/told"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _post(self, request: web.Request) -> web.Response:
        self.told[_place(request)] += 1
        # Whoever is killed now has had the effect and not heard of it.
        await asyncio.sleep(_ANSWER_SECONDS)
        return web.Response(text="thank you")

    async def _get(self, request: web.Request) -> web.Response:
        count = self.told[_place(request)]
        return web.Response(text={0: "never told", 1: "told once"}.get(count, f"told once, and {count - 1} times more"))


def _place(request: web.Request) -> str:
    return f"{request.match_info['task']}/{request.match_info['agent']}"
