"""A search server as the fleet expects one (SearXNG, in JSON), with three results of which two are the same."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from aiohttp import web

from tests.tool_doubles import served

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
        self._stack = AsyncExitStack()
        self.url = f"http://127.0.0.1:{await self._stack.enter_async_context(served(self._search))}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _search(self, request: web.Request) -> web.Response:
        self.asked.append(request.query["q"])
        return web.json_response({"query": request.query["q"], "results": list(RESULTS)})
