"""`fleet telegram` from a phone to the fleet and back, over a Bot API on loopback and chats over a real gRPC server.

Nothing is lost, nothing done twice, nobody served uninvited. Agents and model are scripted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import structlog
from rich.console import Console

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import DEFAULT_TENANT, TaskKind
from swe_ai_fleet.extensions.chat.telegram.commands import allowed_chats, serve
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from tests.extensions.chat.telegram_server import TOKEN as BOT_TOKEN
from tests.extensions.chat.telegram_server import TelegramServer
from tests.extensions.chat.test_conversation_service import TOKEN, Service, served

ME, FRIEND, STRANGER = 7, -100123, 666


@dataclass(frozen=True, kw_only=True)
class World:
    service: Service
    telegram: TelegramServer
    nats: EmbeddedNats
    out: StringIO
    store: KeyValue

    @asynccontextmanager
    async def bot(self) -> AsyncIterator[None]:
        """The command, until it is ended; another one knows what the store knows."""
        where: dict[str, Any] = {"nats_url": self.nats.address.url, "nats_token": self.nats.address.token}
        where |= {"telegram_url": self.telegram.url, "telegram_token": BOT_TOKEN}
        settings = self.service.settings.model_copy(update=where | {"telegram_chats": f"{ME},{FRIEND}"})
        console = Console(file=self.out, width=160)
        screen = Screen(json=False, out=console, err=console)
        serving = asyncio.create_task(serve(screen, settings, server=self.service.address, token=TOKEN))
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until nothing that came in waits for an answer."""
        while await self.store.entries("inbox."):
            await asyncio.sleep(0.01)

    async def answers(self, *texts: str, chat: int = ME) -> list[str]:
        """What a person reads who writes this to a bot that was just started."""
        before = len(self.telegram.sent)
        for text in texts:
            self.telegram.say(chat, text)
        async with self.bot():
            await self.telegram.until_sent(before + len(texts))
            await self.settled()
        return [sent.shown for sent in self.telegram.sent[before:]]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with (
        asyncio.timeout(60),
        EmbeddedNats(tmp_path / "nats") as nats,
        served(tmp_path) as service,
        TelegramServer() as telegram,
        JetStream.connect(nats.address.url, credentials=NatsCredentials(token=nats.address.token)) as log,
    ):
        store = await log.bucket("TELEGRAM", ttl_seconds=30 * 86_400.0)
        yield World(service=service, telegram=telegram, nats=nats, out=StringIO(), store=store)


async def test_from_a_phone_to_the_fleet_and_back(world: World) -> None:
    await world.service.run("task-1", "task-2")
    (listed,) = await world.answers("What runs here?")
    assert "Here is everything." in listed and "Do task-1" in listed
    (shown,) = await world.answers("Show me the second one")
    assert shown.startswith("It won.")
    # A yes that was written before the proposal was there to be read is one to something else.
    (asked, unread) = await world.answers("Mend the parser", "yes")
    assert "Fix the parser" in asked and unread == "Hello."
    await world.answers("Mend the parser")
    (started,) = await world.answers("yes")
    assert started.startswith("Started.")
    assert all(sent.marked for sent in world.telegram.sent)
    (refused,) = await world.answers("x" * 20_000)
    assert "20000 characters" in refused
    (again,) = await world.answers("/new")
    assert again.startswith("A new conversation")
    states = world.service.executions.projection.select(DEFAULT_TENANT)
    assert sum(state.task.kind is not TaskKind.CHAT for state in states) == 3


async def test_nothing_is_answered_twice_after_a_restart(world: World) -> None:
    """What was cut short goes on at the page that was missing."""
    world.telegram.most = 3
    world.telegram.say(ME, "Hello")
    world.telegram.say(ME, "a long one")
    async with world.bot():
        await world.telegram.held.wait()
    world.telegram.most = None
    world.telegram.say(ME, "and you?")
    async with world.bot():
        while world.telegram.sent[-1].shown != "Hello.":
            await world.telegram.until_sent(len(world.telegram.sent) + 1)
        await world.settled()
    shown = "\n".join(sent.shown for sent in world.telegram.sent)
    assert shown.splitlines() == ["Hello.", *(f"{n}. line {n}!" for n in range(800)), "Hello."]


async def test_only_chats_that_are_allowed_are_served_and_a_slow_one_keeps_nobody_waiting(world: World) -> None:
    for chat, text in ((ME, "a slow one"), (STRANGER, "let me in"), (STRANGER, "please"), (FRIEND, "Hello")):
        world.telegram.say(chat, text)
    async with world.bot():
        await world.telegram.until_sent(2)
    told = {sent.chat_id: sent.shown for sent in world.telegram.sent}
    assert (len(world.telegram.sent), told[FRIEND], "666" in told[STRANGER]) == (2, "Hello.", True)
    assert allowed_chats("7, -100123") == {7, -100123}
    for text in ("", "me", "7,x", "--7"):
        with pytest.raises(InvalidRequest):
            allowed_chats(text)


async def test_the_token_is_in_no_error_and_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = BOT_TOKEN.partition(":")[2]
    for failure in (500, 429):
        body = {"description": f"https://x/bot{BOT_TOKEN}/getUpdates failed", "parameters": {"retry_after": 0}}
        world.telegram.failures.append(("getUpdates", failure, body))
    world.telegram.failures.append(("sendMessage", 403, {"description": f"bot{BOT_TOKEN} was blocked"}))
    with structlog.testing.capture_logs() as logged:
        world.telegram.say(ME, "Hello")
        async with world.bot(), asyncio.timeout(30):
            while world.telegram.failures:
                await asyncio.sleep(0.05)
    assert logged and secret not in repr(logged) + caplog.text + world.out.getvalue()
