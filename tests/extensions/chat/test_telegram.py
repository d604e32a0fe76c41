"""The Telegram bot against a Bot API on loopback: nothing lost, nothing done twice, nobody served uninvited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
import structlog

from swe_ai_fleet import conversations
from swe_ai_fleet.conversations import Channel
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.extensions.chat.telegram.api import BotApi
from swe_ai_fleet.extensions.chat.telegram.bot import TelegramBot
from swe_ai_fleet.extensions.chat.telegram.commands import allowed_chats
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.extensions.chat.telegram_server import TOKEN, TelegramServer

ME, FRIEND, STRANGER = 7, -100123, 666


@dataclass
class Echo:
    """Answers by what it was asked; the same message again is not worked on again."""

    worked: list[tuple[str, str, str]] = field(default_factory=list)
    faults: list[FleetError] = field(default_factory=list)
    known: dict[str, Sequence[str]] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    holds: dict[str, asyncio.Event] = field(default_factory=dict)
    asked: int = 0
    unseen: list[str] = field(default_factory=list)

    async def answer(self, session_id: str, text: str, *, message_id: str, seen: bool) -> Sequence[str]:
        self.asked += 1
        if not seen:
            self.unseen.append(text)
        if self.faults:
            raise self.faults.pop(0)
        if text in self.holds:
            await self.holds[text].wait()
        if message_id not in self.known:
            self.worked.append((session_id, text, message_id))
            long = "\n".join(f"{n}. **line** {n}!" for n in range(800))
            self.known[message_id] = conversations.pages(
                long if text == "long" else f"You said: *{text}*", Channel.TELEGRAM
            )
        return self.known[message_id]

    async def forget(self, session_id: str) -> None:
        self.forgotten.append(session_id)


@dataclass
class World:
    telegram: TelegramServer
    store: MemoryKeyValue = field(default_factory=MemoryKeyValue)
    echo: Echo = field(default_factory=Echo)
    slept: list[float] = field(default_factory=list)
    apis: list[BotApi] = field(default_factory=list)

    async def poll(self) -> None:
        """Ask once and answer everything, by a bot that was just started."""
        bot = self.bot()
        await bot.poll()
        await bot.settled()

    def bot(self, url: str = "", token: str = TOKEN) -> TelegramBot:
        """A bot as it is after a restart: it knows what the store knows."""

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        api = BotApi(url or self.telegram.url, token)
        self.apis.append(api)
        return TelegramBot(api, self.echo, self.store, chats=[ME, FRIEND], poll_seconds=0, sleep=sleep)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with TelegramServer() as telegram, asyncio.timeout(20):
        made = World(telegram=telegram)
        yield made
        for api in made.apis:
            await api.close()


async def test_nothing_is_answered_twice_after_a_restart(world: World) -> None:
    world.telegram.say(ME, "one")
    world.telegram.say(FRIEND, "two")
    await world.poll()
    await world.poll()
    world.telegram.say(ME, "three")
    await world.poll()
    assert sorted(sent.shown for sent in world.telegram.sent) == ["You said: one", "You said: three", "You said: two"]
    assert world.telegram.asked == [0, 102, 102]


async def test_what_was_cut_short_goes_on_at_the_page_that_was_missing(world: World) -> None:
    world.telegram.say(ME, "before")
    world.telegram.say(ME, "long")
    world.telegram.say(ME, "after")
    bot = world.bot()
    send, reached, taken = bot._api.send, asyncio.Event(), []

    async def dies(chat_id: int, text: str, *, marked: bool) -> int:
        if len(taken) == 3:
            reached.set()
            await asyncio.Event().wait()
        taken.append(text)
        return await send(chat_id, text, marked=marked)

    bot._api.send = dies  # type: ignore[method-assign]
    assert await bot.poll() == 3
    await reached.wait()
    await bot.close()
    await world.poll()
    shown = "\n".join(sent.shown for sent in world.telegram.sent)
    assert shown.splitlines() == ["You said: before", *(f"{n}. line {n}!" for n in range(800)), "You said: after"]
    assert [text for _, text, _ in world.echo.worked] == ["before", "long", "after"]
    assert await world.store.entries("inbox.") == ()


async def test_a_slow_chat_does_not_keep_others_waiting(world: World) -> None:
    slow = asyncio.Event()
    world.echo.holds["slow"] = slow
    world.telegram.say(ME, "slow")
    world.telegram.say(ME, "behind it")
    bot = world.bot()
    await bot.poll()
    world.telegram.say(FRIEND, "quick")
    await bot.poll()
    await world.telegram.until_sent(1)
    assert [sent.shown for sent in world.telegram.sent] == ["You said: quick"]
    slow.set()
    await bot.settled()
    assert [sent.shown for sent in world.telegram.sent[1:]] == ["You said: slow", "You said: behind it"]


async def test_what_telegram_cannot_read_is_sent_plainly(world: World) -> None:
    world.echo.known["telegram-100"] = ("*not closed, but \\*starred\\* and `x`",)
    world.telegram.say(ME, "x")
    await world.poll()
    (sent,) = world.telegram.sent
    assert (sent.marked, sent.text) == (False, "not closed, but *starred* and x")


async def test_only_chats_that_are_allowed_are_served(world: World) -> None:
    for _ in range(3):
        world.telegram.say(STRANGER, "let me in")
    world.telegram.say(ME, "hi")
    await world.poll()
    world.telegram.say(STRANGER, "please")
    await world.poll()
    told = [sent.shown for sent in world.telegram.sent if sent.chat_id == STRANGER]
    assert len(told) == 1 and "666" in told[0]
    assert [text for _, text, _ in world.echo.worked] == ["hi"]
    assert allowed_chats("7, -100123") == {7, -100123}
    for text in ("", "me", "7,x", "--7"):
        with pytest.raises(InvalidRequest):
            allowed_chats(text)


async def test_the_token_is_in_no_error_and_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret, faults = TOKEN.partition(":")[2], list[FleetError]()
    with structlog.testing.capture_logs() as logged:
        for failure in (500, 400, 429, 401, 409, 0):
            body = {"description": f"https://x/bot{TOKEN}/getUpdates failed"}
            if failure:
                world.telegram.failures.append(("getUpdates", failure, body))
            with pytest.raises(FleetError) as fault:
                await world.bot(url="" if failure else "http://127.0.0.1:9").poll()
            faults.append(fault.value)
        world.telegram.failures.extend([("sendMessage", 403, {"description": f"bot{TOKEN} was blocked"})] * 2)
        world.telegram.say(ME, "hi")
        await world.poll()
    for fault in faults:
        assert secret not in repr((fault, fault.__cause__, fault.__dict__, str(fault)))
        assert fault.__suppress_context__ or fault.__context__ is None
    assert logged and secret not in repr(logged) + caplog.text + repr(world.bot()._api)
