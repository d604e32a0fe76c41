"""The bot: asks for messages, has each answered once, sends the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import structlog

from swe_ai_fleet.adapters.telegram.api import BotApi, Refused, TooFast, Update
from swe_ai_fleet.conversations.formatting.telegram import escaped, unmarked
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.ports import KeyValue

TELEGRAM_BUCKET = "TELEGRAM"
POLL_SECONDS = 25
MAX_REFUSED = 1_000
"""Chats that are told once that they are not served; what comes from others beyond them is passed over."""
_OFFSET, _REFUSED = "offset", "refused"
_WAITS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
_ASK_TRIES = 8
_SEND_TRIES = 6
_NOT_ALLOWED = "This bot does not serve this chat. Its owner can allow it: FLEET_TELEGRAM_CHATS={chat_id}"
_HELP = (
    "I am the assistant of SWE AI Fleet. Write to me in plain words, for example: list the executions, show me the "
    "second one, what did it change? /new begins a new conversation."
)
_TEXT_ONLY = "I can read text only."
_NEW = "A new conversation begins; what was said before is forgotten."
_FAILED = "Sorry, this cannot be answered: {why}"
_log = structlog.get_logger(__name__)


class Answers(Protocol):
    """Who answers."""

    async def answer(self, session_id: str, text: str, *, message_id: str) -> Sequence[str]:
        """The answer in pages of MarkdownV2; the same message_id again gives the same answer.

        Raises InvalidRequest, PreconditionFailed (the session is busy), Unavailable, and any other FleetError.
        """
        ...

    async def forget(self, session_id: str) -> None:
        """End a session. Raises FleetError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handled:
    """The last message of a chat that was begun with, and how many pages of its answer were sent; -1: all of them."""

    update_id: int = 0
    pages: int = -1


class TelegramBot:
    """Serves some chats, each as a session of its own.

    How far it is stands in the store: after a restart nothing is lost, no message is worked on twice, and of an answer
    only a page whose sending was cut short can come twice. Chats are answered side by side, the messages of one in
    their order.

    Args:
        api: Telegram.
        answers: Who answers.
        store: Where it is kept how far the bot is: the bucket `TELEGRAM`.
        chats: Ids of the chats that are served; others are told once that they are not.
        sleep: Waits.
    """

    def __init__(
        self,
        api: BotApi,
        answers: Answers,
        store: KeyValue,
        *,
        chats: Collection[int],
        poll_seconds: int = POLL_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._answers = answers
        self._store = store
        self._chats = frozenset(chats)
        self._poll_seconds = poll_seconds
        self._sleep = sleep
        self._refused: set[int] | None = None

    async def run(self) -> NoReturn:
        """Serve until it is cancelled. Raises PreconditionFailed where no try can help: a wrong token."""
        failures = 0
        while True:
            try:
                await self.poll()
                failures = 0
            except TooFast as fault:
                await self._sleep(fault.seconds)
            except Unavailable as fault:
                _log.warning("telegram.unavailable", reason=fault.message)
                await self._sleep(_WAITS[min(failures, len(_WAITS) - 1)])
                failures += 1

    async def poll(self) -> int:
        """Ask for messages once and have them all handled; how many there were.

        Raises PreconditionFailed, TooFast, Unavailable.
        """
        offset = await self._offset()
        updates = await self._api.updates(offset, seconds=self._poll_seconds)
        by_chat: dict[int, list[Update]] = {}
        for update in updates:
            by_chat.setdefault(update.chat_id, []).append(update)
        # Each chat to its end: what one meets must not break off the others' answers.
        ended = await asyncio.gather(
            *(self._chat(chat_id, messages) for chat_id, messages in by_chat.items()), return_exceptions=True
        )
        for fault in ended:
            if fault is not None:
                raise fault  # what was not handled comes again
        if updates:
            # Only now: an update is forgotten by Telegram once a higher number is asked for.
            following = max(update.update_id for update in updates) + 1
            await self._store.put(_OFFSET, str(following).encode())
        return len(updates)

    async def _chat(self, chat_id: int, messages: Sequence[Update]) -> None:
        if chat_id not in self._chats:
            await self._refuse(chat_id)
            return
        for update in messages:
            await self._handle(update)

    async def _handle(self, update: Update) -> None:
        done = await self._handled(update.chat_id)
        if update.update_id < done.update_id or (update.update_id == done.update_id and done.pages < 0):
            return
        sent = done.pages if update.update_id == done.update_id else 0
        pages = await self._pages(update)
        for number, page in enumerate(pages):
            if number < sent:
                continue
            await self._send(update.chat_id, page)
            last = number + 1 == len(pages)
            await self._keep(update, -1 if last else number + 1)
        if not pages:
            await self._keep(update, -1)

    async def _pages(self, update: Update) -> Sequence[str]:
        session_id = f"telegram-{update.chat_id}"
        command = update.text.strip().split("@")[0].lower()
        if command in ("/start", "/help"):
            return (escaped(_HELP),)
        if not update.text.strip():
            return (escaped(_TEXT_ONLY),)
        try:
            if command == "/new":
                await self._answers.forget(session_id)
                return (escaped(_NEW),)
            return await self._answered(session_id, update)
        except FleetError as fault:
            _log.warning("telegram.not_answered", reason=fault.message, update_id=update.update_id)
            return (escaped(_FAILED.format(why=fault.message[:500])),)

    async def _answered(self, session_id: str, update: Update) -> Sequence[str]:
        """The answer, tried again where the fleet is away or the session busy. Raises FleetError."""
        for number in range(_ASK_TRIES):
            try:
                return await self._answers.answer(session_id, update.text, message_id=f"telegram-{update.update_id}")
            except InvalidRequest:
                raise
            except (Unavailable, PreconditionFailed):
                if number + 1 == _ASK_TRIES:
                    raise
                await self._sleep(_WAITS[min(number, len(_WAITS) - 1)])
        raise AssertionError("the last try answers or raises")

    async def _send(self, chat_id: int, page: str) -> None:
        """Send a page; as plain text where Telegram cannot read its marks. Raises Unavailable, PreconditionFailed."""
        marked = True
        for number in range(_SEND_TRIES):
            try:
                await self._api.send(chat_id, page if marked else unmarked(page), marked=marked)
                return
            except Refused as fault:
                if not marked:
                    # A chat that is gone, or has blocked the bot: nothing can be sent there any more.
                    _log.warning("telegram.not_sent", reason=fault.message)
                    return
                marked = False
            except TooFast as fault:
                await self._sleep(fault.seconds)
            except Unavailable:
                if number + 1 == _SEND_TRIES:
                    raise
                await self._sleep(_WAITS[min(number, len(_WAITS) - 1)])
        raise Unavailable("Telegram did not take a message", field="telegram_url")

    async def _refuse(self, chat_id: int) -> None:
        """Tell a chat once that it is not served."""
        known = await self._refused_chats()
        if chat_id in known or len(known) >= MAX_REFUSED:
            return
        known.add(chat_id)
        await self._store.put(_REFUSED, json.dumps(sorted(known)).encode())
        _log.info("telegram.chat_refused", chat_id=chat_id)
        await self._send(chat_id, escaped(_NOT_ALLOWED.format(chat_id=chat_id)))

    async def _refused_chats(self) -> set[int]:
        if self._refused is None:
            entry = await self._store.get(_REFUSED)
            self._refused = set(json.loads(entry.value)) if entry is not None else set[int]()
        return self._refused

    async def _offset(self) -> int:
        entry = await self._store.get(_OFFSET)
        return int(entry.value) if entry is not None else 0

    async def _handled(self, chat_id: int) -> _Handled:
        entry = await self._store.get(f"chat.{chat_id}")
        if entry is None:
            return _Handled()
        update_id, pages = json.loads(entry.value)
        return _Handled(update_id=int(update_id), pages=int(pages))

    async def _keep(self, update: Update, pages: int) -> None:
        await self._store.put(f"chat.{update.chat_id}", json.dumps([update.update_id, pages]).encode())
