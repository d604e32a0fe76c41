"""The Telegram bot: it polls for messages, gets one answer for each from the fleet, and sends it.

Its progress is stored in a key-value store; it has no other state that outlives the process.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

import structlog

from swe_ai_fleet.conversations.pages import escaped, unmarked
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.extensions.chat.telegram.answers import FleetAnswers
from swe_ai_fleet.extensions.chat.telegram.api import BotApi, MessageRefused, TelegramUpdate, TooFast
from swe_ai_fleet.following import waits
from swe_ai_fleet.ports import KeyValue

TELEGRAM_BUCKET = "TELEGRAM"
_OFFSET, _REFUSED, _INBOX = "offset", "refused", "inbox"
_NUMBERED_SECONDS = 6 * 86_400.0
"""After a week without messages Telegram may restart its numbering; older numbers are not compared."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """The last message of a chat whose answer the bot began to send, and the number of pages sent; -1: all of them.

    `message_id` is that of the newest page: a message with a lower one was written before that page could be read.
    """

    update_id: int = 0
    pages: int = -1
    message_id: int = 0


class BotProgress:
    """The stored progress: accepted messages, sent answers, refused chats.

    Args:
        store: The bucket `TELEGRAM`.
        clock: Seconds since 1970.
    """

    def __init__(self, store: KeyValue, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._refused: set[int] | None = None

    async def offset(self) -> int:
        """The number of the first update that is not accepted yet. Raises Unavailable."""
        entry = await self._store.get(_OFFSET)
        if entry is None:
            return 0
        offset, at = json.loads(entry.value)
        return int(offset) if self._clock() - at < _NUMBERED_SECONDS else 0

    async def accept(self, updates: list[TelegramUpdate], offset: int) -> None:
        """Store messages, then the `offset` below which Telegram may forget updates. Raises Unavailable."""
        for update in updates:
            record = [update.chat_id, update.text, update.message_id]
            await self._store.put(_key(update), json.dumps(record).encode())
        await self._store.put(_OFFSET, json.dumps([offset, self._clock()]).encode())

    async def accepted(self) -> list[TelegramUpdate]:
        """Accepted messages that are not finished, in their order. Raises Unavailable."""
        updates: list[TelegramUpdate] = []
        for entry in await self._store.entries(f"{_INBOX}."):
            chat_id, text, message_id = json.loads(entry.value)
            number = int(entry.key.partition(".")[2])
            updates.append(
                TelegramUpdate(update_id=number, chat_id=int(chat_id), text=str(text), message_id=int(message_id))
            )
        return sorted(updates, key=lambda update: update.update_id)

    async def handled(self, chat_id: int) -> Handled:
        """The progress of a chat's answers. Raises Unavailable."""
        entry = await self._store.get(f"chat.{chat_id}")
        if entry is None:
            return Handled()
        update_id, pages, message_id, at = json.loads(entry.value)
        if self._clock() - at >= _NUMBERED_SECONDS:
            return Handled(message_id=int(message_id))
        return Handled(update_id=int(update_id), pages=int(pages), message_id=int(message_id))

    async def record_sent(self, update: TelegramUpdate, pages: int, *, message_id: int) -> None:
        """Record the number of sent pages of an answer (-1: all) and the id of the newest. Raises Unavailable."""
        record = [update.update_id, pages, message_id, self._clock()]
        await self._store.put(f"chat.{update.chat_id}", json.dumps(record).encode())

    async def record_done(self, update: TelegramUpdate) -> None:
        """Mark a message as finished. Raises Unavailable."""
        await self._store.delete(_key(update))

    async def refused(self) -> set[int]:
        """The chats that got the message that they are not served. Raises Unavailable."""
        if self._refused is None:
            entry = await self._store.get(_REFUSED)
            self._refused = set(json.loads(entry.value)) if entry is not None else set[int]()
        return self._refused

    async def refuse(self, chat_id: int) -> None:
        """Record that a chat got that message. Raises Unavailable."""
        refused = await self.refused()
        refused.add(chat_id)
        await self._store.put(_REFUSED, json.dumps(sorted(refused)).encode())


def _key(update: TelegramUpdate) -> str:
    return f"{_INBOX}.{update.update_id:020d}"


POLL_SECONDS = 25
MAX_REFUSED = 1_000
"""The most chats that get the message that they are not served; messages of further chats are ignored."""
MAX_WAITING = 500
"""The most messages that may wait for an answer; beyond it, polling pauses."""
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


class TelegramBot:
    """Serves some chats, each as a session of its own.

    An accepted message is stored until it is finished, so after a restart no message is lost or worked on twice; only
    a page whose sending was interrupted can arrive twice. Chats are answered in parallel, each one's messages in order.

    Args:
        api: Telegram.
        answers: Answers the messages.
        store: Keeps the progress: the bucket `TELEGRAM`.
        chats: Ids of the chats that are served; others get one message that they are not.
        poll_seconds: How long Telegram holds one poll open.
        sleep: Waits.
    """

    def __init__(
        self,
        api: BotApi,
        answers: FleetAnswers,
        store: KeyValue,
        *,
        chats: Collection[int],
        poll_seconds: int = POLL_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._answers = answers
        self._progress = BotProgress(store)
        self._chats = frozenset(chats)
        self._poll_seconds = poll_seconds
        self._sleep = sleep
        self._waiting: dict[int, deque[TelegramUpdate]] = {}
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._resumed = False

    async def run(self) -> NoReturn:
        """Serve until it is cancelled. Raises PreconditionFailed for what no retry can fix, such as a wrong token."""
        pauses = waits(_WAITS)
        try:
            while True:
                try:
                    await self.poll()
                    pauses = waits(_WAITS)
                except TooFast as fault:
                    await self._sleep(fault.seconds)
                except Unavailable as fault:
                    _log.warning("telegram.unavailable", reason=fault.message)
                    await self._sleep(next(pauses))
        finally:
            await self.close()

    async def poll(self) -> int:
        """Poll once and start to answer the messages; returns how many there were.

        Raises PreconditionFailed, TooFast, Unavailable.
        """
        if not self._resumed:
            for update in await self._progress.accepted():
                self._take(update)
            self._resumed = True
        await self._make_room()
        updates = await self._api.updates(await self._progress.offset(), seconds=self._poll_seconds)
        if not updates:
            return 0
        ours = [update for update in updates if update.chat_id in self._chats]
        # Telegram forgets updates once the bot polls with a higher number, so they are stored first.
        await self._progress.accept(ours, max(update.update_id for update in updates) + 1)
        for update in ours:
            self._take(update)
        for chat_id in dict.fromkeys(update.chat_id for update in updates if update.chat_id not in self._chats):
            await self._refuse(chat_id)
        return len(updates)

    async def settled(self) -> None:
        """Wait until every accepted message is finished. Raises PreconditionFailed."""
        while self._workers:
            await self._one_done()

    async def close(self) -> None:
        """Cancel answers in progress; they resume after a restart."""
        workers = tuple(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        self._workers.clear()

    async def _make_room(self) -> None:
        """Wait while too many messages wait to be answered; raise the error of a worker that failed."""
        while sum(map(len, self._waiting.values())) >= MAX_WAITING:
            await self._one_done()
        self._dismiss()

    async def _one_done(self) -> None:
        await asyncio.wait(self._workers.values(), return_when=asyncio.FIRST_COMPLETED)
        self._dismiss()

    def _dismiss(self) -> None:
        """Remove finished workers. Raises the error of one that failed."""
        for chat_id, worker in tuple(self._workers.items()):
            if worker.done():
                del self._workers[chat_id]
                worker.result()

    def _take(self, update: TelegramUpdate) -> None:
        """Queue a message behind those of its chat."""
        waiting = self._waiting.setdefault(update.chat_id, deque())
        waiting.append(update)
        worker = self._workers.get(update.chat_id)
        if worker is None or worker.done():
            self._workers[update.chat_id] = asyncio.create_task(self._work(update.chat_id), name="telegram chat")

    async def _work(self, chat_id: int) -> None:
        """Answer a chat's queued messages. Raises PreconditionFailed."""
        waiting, pauses = self._waiting[chat_id], waits(_WAITS)
        while waiting:
            try:
                await self._handle(waiting[0])
                await self._progress.record_done(waiting[0])
            except Unavailable as fault:
                _log.warning("telegram.waits", reason=fault.message, chat_id=chat_id)
                await self._sleep(next(pauses))
                continue
            waiting.popleft()
            pauses = waits(_WAITS)

    async def _handle(self, update: TelegramUpdate) -> None:
        done = await self._progress.handled(update.chat_id)
        if update.update_id < done.update_id or (update.update_id == done.update_id and done.pages < 0):
            return
        sent = done.pages if update.update_id == done.update_id else 0
        newest = done.message_id
        pages = await self._pages(update, seen=update.message_id > newest)
        for number, page in enumerate(pages):
            if number < sent:
                continue
            newest = max(newest, await self._send(update.chat_id, page))
            last = number + 1 == len(pages)
            await self._progress.record_sent(update, -1 if last else number + 1, message_id=newest)
        if not pages:
            await self._progress.record_sent(update, -1, message_id=newest)

    async def _pages(self, update: TelegramUpdate, *, seen: bool) -> Sequence[str]:
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
            return await self._answer_of(session_id, update, seen=seen)
        except FleetError as fault:
            _log.warning("telegram.not_answered", reason=fault.message, update_id=update.update_id)
            return (escaped(_FAILED.format(why=fault.message[:500])),)

    async def _answer_of(self, session_id: str, update: TelegramUpdate, *, seen: bool) -> Sequence[str]:
        """The answer; retries while the fleet is unavailable or the session busy. Raises FleetError."""
        for number, pause in enumerate(islice(waits(_WAITS), _ASK_TRIES), start=1):
            try:
                message_id = f"telegram-{update.update_id}"
                return await self._answers.answer(session_id, update.text, message_id=message_id, seen=seen)
            except InvalidRequest:
                raise
            except (Unavailable, PreconditionFailed):
                if number == _ASK_TRIES:
                    raise
                await self._sleep(pause)
        raise AssertionError("the last try answers or raises")

    async def _send(self, chat_id: int, page: str) -> int:
        """Send a page, as plain text if Telegram refuses its markup; its id, 0 if it cannot be sent.

        Raises Unavailable, PreconditionFailed.
        """
        marked = True
        for number, pause in enumerate(islice(waits(_WAITS), _SEND_TRIES), start=1):
            try:
                return await self._api.send(chat_id, page if marked else unmarked(page), marked=marked)
            except MessageRefused as fault:
                if not marked:
                    # The chat is gone, or has blocked the bot: no message can be sent to it.
                    _log.warning("telegram.not_sent", reason=fault.message)
                    return 0
                marked = False
            except TooFast as fault:
                await self._sleep(fault.seconds)
            except Unavailable:
                if number == _SEND_TRIES:
                    raise
                await self._sleep(pause)
        raise Unavailable("Telegram did not take a message", field="telegram_url")

    async def _refuse(self, chat_id: int) -> None:
        """Tell a chat once that it is not served."""
        refused = await self._progress.refused()
        if chat_id in refused or len(refused) >= MAX_REFUSED:
            return
        await self._progress.refuse(chat_id)
        _log.info("telegram.chat_refused", chat_id=chat_id)
        try:
            await self._api.send(chat_id, escaped(_NOT_ALLOWED.format(chat_id=chat_id)), marked=True)
        except (MessageRefused, TooFast, Unavailable) as fault:
            # Served chats do not wait for a refused one.
            _log.info("telegram.not_sent", reason=fault.message)
