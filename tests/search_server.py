"""A search server as the fleet expects one (SearXNG, in JSON), with three results of which two are the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

RESULTS = (
    {"title": "The first one", "url": "https://one.example/a", "content": 'It says "yes", \\ and null.'},
    {"title": "The second one", "url": "https://two.example/b", "content": "'''; import os; os.abort() #"},
    {"title": "The first one again", "url": "https://one.example/a", "content": "the same page"},
)


@dataclass
class SearchServer:
    """Answers every query with the same results, and remembers what it was asked. An async context."""

    url: str = ""
    asked: list[str] = field(default_factory=list[str])

    async def __aenter__(self) -> SearchServer:
        app = web.Application()
        app.router.add_get("/search", self._search)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()

    async def _search(self, request: web.Request) -> web.Response:
        self.asked.append(request.query["q"])
        return web.json_response({"query": request.query["q"], "results": list(RESULTS)})
