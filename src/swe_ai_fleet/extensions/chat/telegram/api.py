"""The part of Telegram's Bot API that a chat needs. The token is in every URL, and in no message or error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.json_values import integer, json_object, mapping, mappings, string
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.http_transport import GuardedTransport, HttpPolicy, parse_url, port_of, read_body

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_WAIT_SECONDS = 300.0
_CALL_SECONDS = 30.0
_DESCRIPTION_CHARS = 300
_TOKEN_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_-")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramUpdate:
    """A received message; `text` is empty for any other content (a picture, a voice message).

    `message_id` grows within a chat, with the bot's own messages counted too.
    """

    update_id: int
    chat_id: int
    text: str
    message_id: int = 0


class MessageRefused(FleetError):
    """Telegram refuses this message (400): it has invalid markup, or its chat is gone."""


class TooFast(ResourceExhausted):
    """Telegram limits the rate of calls (429); the next may follow after `seconds`."""

    def __init__(self, message: str, *, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class BotApi:
    """Calls to one server of the Bot API; connections go nowhere else.

    Args:
        url: The server, such as https://api.telegram.org.
        token: The bot's token.
        network: The network of the connections; None: the real one.

    Raises:
        InvalidRequest: No token, or a malformed one; a malformed address.
    """

    def __init__(self, url: str, token: str, *, network: Network | None = None) -> None:
        if not token or not set(token) <= _TOKEN_CHARS:
            raise InvalidRequest(
                "no Telegram bot token is set" if not token else "the token is not a Telegram bot token",
                field="telegram_token",
                hint="set FLEET_TELEGRAM_TOKEN to what @BotFather gave",
            )
        try:
            base = parse_url(url.rstrip("/"))
        except ToolFailure as fault:
            raise InvalidRequest(fault.message, field="telegram_url") from None
        network = network or Network()
        self._base = str(base).rstrip("/")
        self._server = f"{base.host}:{port_of(base)}"
        self._token = token
        self._transport = GuardedTransport(
            HttpPolicy(allowed_hosts=(), private_hosts=(base.host,), ports=(port_of(base),)),
            resolver=network.resolver,
            network=network.backend,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def updates(self, offset: int, *, seconds: int) -> tuple[TelegramUpdate, ...]:
        """The messages from an update's number on, after at most `seconds`; Telegram forgets those before it.

        Raises PreconditionFailed (a wrong token, another poller), TooFast, Unavailable.
        """
        query: dict[str, object] = {"offset": offset, "timeout": seconds, "allowed_updates": ["message"], "limit": 100}
        return tuple(map(_update, mappings(await self._call("getUpdates", query, seconds=seconds + _CALL_SECONDS))))

    async def send(self, chat_id: int, text: str, *, marked: bool) -> int:
        """Send a message, as MarkdownV2 if it is `marked`; its id, 0 if Telegram does not return one.

        Raises MessageRefused, PreconditionFailed, TooFast, Unavailable.
        """
        message: dict[str, object] = {"chat_id": chat_id, "text": text}
        if marked:
            message["parse_mode"] = "MarkdownV2"
        return integer(mapping(await self._call("sendMessage", message, seconds=_CALL_SECONDS)).get("message_id"))

    async def _call(self, method: str, arguments: Mapping[str, object], *, seconds: float) -> object:
        request = httpx2.Request(
            "POST",
            f"{self._base}/bot{self._token}/{method}",
            content=json.dumps(arguments).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        try:
            async with asyncio.timeout(seconds):
                response = await self._transport.handle_async_request(request)
                try:
                    body = await read_body(response, MAX_BODY_BYTES)
                finally:
                    await response.aclose()
        except (ToolFailure, TimeoutError) as fault:
            # Raised without its cause, which holds the URL and with it the token.
            why = fault.message if isinstance(fault, ToolFailure) else f"no answer within {seconds:g} seconds"
            raise Unavailable(f"Telegram cannot be reached: {self._clean(why)}", field="telegram_url") from None
        return self._result(method, response.status_code, body.data)

    def _result(self, method: str, status: int, data: bytes) -> object:
        fields = json_object(data)
        if status == 200 and fields.get("ok") is True:
            return fields.get("result")
        description = self._clean(str(fields.get("description") or ""))[:_DESCRIPTION_CHARS] or f"HTTP {status}"
        match status:
            case 400 | 403:
                raise MessageRefused(f"Telegram refuses {method}: {description}")
            case 401 | 404:
                raise PreconditionFailed(
                    "Telegram rejected the bot's token", field="telegram_token", hint="ask @BotFather for it"
                )
            case 409:
                raise PreconditionFailed(
                    "another process receives this bot's messages", hint="only one can: stop it, or remove its webhook"
                )
            case 429:
                raise TooFast(f"Telegram asks to wait: {description}", seconds=_wait(fields.get("parameters")))
            case _:
                raise Unavailable(f"{self._server} does not answer {method}: {description}", field="telegram_url")

    def _clean(self, text: str) -> str:
        return " ".join(text.replace(self._token, "[token]").split())


def _update(fields: Mapping[str, object]) -> TelegramUpdate:
    message = mapping(fields, "message")
    return TelegramUpdate(
        update_id=integer(fields.get("update_id")),
        chat_id=integer(mapping(message, "chat").get("id")),
        text=well_formed(string(message.get("text"))),
        message_id=integer(message.get("message_id")),
    )


def _wait(parameters: object) -> float:
    seconds = mapping(parameters).get("retry_after")
    return min(float(seconds), MAX_WAIT_SECONDS) if isinstance(seconds, int | float) and seconds > 0 else 1.0
