"""`fleet telegram`: chats of Telegram over a running fleet, until Ctrl-C."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from swe_ai_fleet.cli.edge import run_command
from swe_ai_fleet.cli.options import Server, Token
from swe_ai_fleet.cli.place import fleet_client, nats_of
from swe_ai_fleet.cli.screen import Exit, Screen, interrupts
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.extensions.chat.telegram.answers import FleetAnswers
from swe_ai_fleet.extensions.chat.telegram.api import BotApi
from swe_ai_fleet.extensions.chat.telegram.bot import TELEGRAM_BUCKET, TelegramBot
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.settings import Settings, listed

_KEPT_SECONDS = 30 * 86_400.0
"""How long progress is kept after its last change; Telegram keeps messages for a day."""


async def serve(screen: Screen, settings: Settings, *, server: str, token: str) -> Exit:
    """Run the bot until a signal arrives."""
    chats = allowed_chats(settings.telegram_chats)
    api = BotApi(settings.telegram_url, settings.telegram_token)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        calls = (await stack.enter_async_context(fleet_client(settings, server=server, token=token))).calls
        log = await stack.enter_async_context(connect_log(nats_of(settings), name="telegram"))
        store = await log.bucket(TELEGRAM_BUCKET, ttl_seconds=_KEPT_SECONDS)
        bot = TelegramBot(api, FleetAnswers(calls), store, chats=chats)
        screen.note(f"the bot serves {len(chats)} chats of the fleet at {calls.address}; Ctrl-C stops it")
        with interrupts() as signals:
            running = await signals.race(bot.run())
            if running.done():
                await running
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    return Exit.ACCEPTED


def allowed_chats(text: str) -> frozenset[int]:
    """The ids of the served chats. Raises InvalidRequest for an empty list and for a malformed id."""
    chats: set[int] = set()
    for part in listed(text):
        if not part.removeprefix("-").isdecimal() or len(part) > 20:
            raise InvalidRequest(f"{part[:40]!r} is not a chat id", field="telegram_chats", hint="numbers, by commas")
        chats.add(int(part))
    if not chats:
        raise InvalidRequest(
            "no chat is allowed",
            field="telegram_chats",
            hint="set FLEET_TELEGRAM_CHATS to the ids of yours; the bot tells an unknown chat its id",
        )
    return frozenset(chats)


def telegram(*, server: Server = "", token: Token = "") -> None:
    run_command(lambda screen, settings: serve(screen, settings, server=server, token=token), json=False, log_level="")
