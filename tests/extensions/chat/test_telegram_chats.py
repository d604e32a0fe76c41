"""Telegram from end to end: a phone, the bot, and chats over a real gRPC server. Agents and model are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from swe_ai_fleet.cli.client import connect
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.extensions.chat.telegram.api import BotApi
from swe_ai_fleet.extensions.chat.telegram.bot import TelegramBot
from swe_ai_fleet.extensions.chat.telegram.commands import FleetAnswers
from swe_ai_fleet.extensions.chat.telegram.commands import serve as serve_telegram
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.extensions.chat.telegram_server import TOKEN as BOT_TOKEN
from tests.extensions.chat.telegram_server import TelegramServer
from tests.extensions.chat.test_conversation_service import TOKEN, Service, screen, served


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with asyncio.timeout(30), served(tmp_path) as running:
        yield running


class TestTelegram:
    async def test_from_a_phone_to_the_fleet_and_back(self, service: Service) -> None:
        await service.run("task-1", "task-2")
        store = MemoryKeyValue()
        async with TelegramServer() as telegram, connect(service.address, TOKEN) as client:

            async def after_restart(*texts: str) -> Sequence[str]:
                api = BotApi(telegram.url, BOT_TOKEN)
                before = len(telegram.sent)
                for text in texts:
                    telegram.say(7, text)
                bot = TelegramBot(api, FleetAnswers(client.calls), store, chats=[7], poll_seconds=0)
                await bot.poll()
                await bot.settled()
                await api.close()
                return [sent.shown for sent in telegram.sent[before:]]

            (listed,) = await after_restart("What runs here?")
            assert "Here is everything." in listed and "Do task-1" in listed
            (shown,) = await after_restart("Show me the second one")
            assert shown.startswith("It won.")
            # A yes that was written before the proposal was there to be read is one to something else.
            (asked, unread) = await after_restart("Mend the parser", "yes")
            assert "Fix the parser" in asked and unread == "Hello."
            await after_restart("Mend the parser")
            (started,) = await after_restart("yes")
            assert started.startswith("Started.")
            assert await after_restart() == []
            assert all(sent.marked for sent in telegram.sent)
            (refused,) = await after_restart("x" * 20_000)
            assert "20000 characters" in refused
            (again,) = await after_restart("/new")
            assert again.startswith("A new conversation")
        assert len(list(service.executions.projection.select(DEFAULT_TENANT))) == 3

    async def test_the_command_serves_until_it_is_ended(self, service: Service, nats_server: EmbeddedNats) -> None:
        async with TelegramServer() as telegram:
            nats = {"nats_url": nats_server.address.url, "nats_token": nats_server.address.token}
            bot = {"telegram_url": telegram.url, "telegram_token": BOT_TOKEN, "telegram_chats": "7"}
            settings = service.settings.model_copy(update={**nats, **bot})
            shown, _, err = screen()
            serving = asyncio.create_task(serve_telegram(shown, settings, server=service.address, token=TOKEN))
            telegram.say(7, "Hello")
            await telegram.until_sent(1)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
        assert telegram.sent[0].shown == "Hello."
        assert BOT_TOKEN not in err.getvalue()
