"""A Bot API on loopback that is as strict about messages as the real one."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from swe_ai_fleet.conversations import units
from tests.markdown_v2 import Malformed, parse

TOKEN = "123456:a-token_for-tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message that the bot sent and Telegram took."""

    chat_id: int
    text: str
    marked: bool

    @property
    def shown(self) -> str:
        """What a person reads."""
        return parse(self.text).text if self.marked else self.text


class TelegramServer:
    """Holds updates until a higher offset is asked for; refuses messages that are too long or malformed.

    `failures` are answered one after the other instead of what is asked: (method, status, body). `number` is that of
    the next update. Behind `most` messages nothing is taken and nothing answered, which sets `held`.
    """

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.failures: deque[tuple[str, int, dict[str, Any]]] = deque()
        self.asked: list[int] = []
        self.most: int | None = None
        self.held = asyncio.Event()
        self._updates: list[dict[str, Any]] = []
        self.number = 100
        self._messages = 0
        self._runner: web.AppRunner | None = None
        self._changed = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/bot{token}/{method}", self._call)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def say(self, chat_id: int, text: str | None) -> None:
        """A person writes; None is a picture."""
        self._messages += 1
        message: dict[str, Any] = {"message_id": self._messages, "chat": {"id": chat_id}}
        if text is not None:
            message["text"] = text
        self._updates.append({"update_id": self.number, "message": message})
        self.number += 1
        self._tell()

    async def until_sent(self, number: int) -> None:
        """Wait until so many messages were sent."""
        while len(self.sent) < number:
            await self._changed.wait()

    async def _call(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        if request.match_info["token"] != TOKEN:
            return _fault(401, "Unauthorized")
        if self.failures and self.failures[0][0] == method:
            _, status, body = self.failures.popleft()
            return web.json_response({"ok": False, "error_code": status, **body}, status=status)
        asked = await request.json()
        if method == "getUpdates":
            return await self._get(asked)
        if method == "sendMessage":
            if self.most is not None and len(self.sent) >= self.most:
                self.held.set()
                await asyncio.Event().wait()
            return self._send(asked)
        return _fault(404, "Not Found")

    async def _get(self, asked: dict[str, Any]) -> web.Response:
        self.asked.append(asked["offset"])
        self._updates = [one for one in self._updates if one["update_id"] >= asked["offset"]]
        if not self._updates and asked["timeout"]:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), asked["timeout"])
        return web.json_response({"ok": True, "result": self._updates})

    def _send(self, asked: dict[str, Any]) -> web.Response:
        marked = asked.get("parse_mode") == "MarkdownV2"
        text = asked["text"]
        if not text.strip() or units(text) > 4096:
            return _fault(400, "Bad Request: message text is empty, or too long")
        try:
            if marked:
                parse(text)
        except Malformed as fault:
            return _fault(400, f"Bad Request: can't parse entities: {fault}")
        self.sent.append(Sent(chat_id=asked["chat_id"], text=text, marked=marked))
        self._messages += 1
        self._tell()
        return web.json_response({"ok": True, "result": {"message_id": self._messages}})

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _fault(status: int, description: str) -> web.Response:
    return web.json_response({"ok": False, "error_code": status, "description": description}, status=status)
