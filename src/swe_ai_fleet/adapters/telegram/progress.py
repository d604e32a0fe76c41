"""How far a bot is, in a key-value store: nothing else of it outlives its process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from swe_ai_fleet.adapters.telegram.api import Update
from swe_ai_fleet.ports import KeyValue

TELEGRAM_BUCKET = "TELEGRAM"
_OFFSET, _REFUSED, _INBOX = "offset", "refused", "inbox"
_NUMBERED_SECONDS = 6 * 86_400.0
"""After a week without messages Telegram numbers them from anywhere; numbers older than this are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """The last message of a chat that was begun with, and how many pages of its answer were sent; -1: all of them.

    `message_id` is that of the newest page: what has a lower one was written before it was there to be read.
    """

    update_id: int = 0
    pages: int = -1
    message_id: int = 0


class BotProgress:
    """What was accepted, what was answered, who was refused.

    Args:
        store: The bucket `TELEGRAM`.
        clock: Seconds since 1970.
    """

    def __init__(self, store: KeyValue, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._refused: set[int] | None = None

    async def offset(self) -> int:
        """The number of the first update that was not accepted yet. Raises Unavailable."""
        entry = await self._store.get(_OFFSET)
        if entry is None:
            return 0
        offset, at = json.loads(entry.value)
        return int(offset) if self._clock() - at < _NUMBERED_SECONDS else 0

    async def accept(self, updates: list[Update], offset: int) -> None:
        """Keep messages, and then that Telegram may forget everything before a number. Raises Unavailable."""
        for update in updates:
            kept = [update.chat_id, update.text, update.message_id]
            await self._store.put(_key(update), json.dumps(kept).encode())
        await self._store.put(_OFFSET, json.dumps([offset, self._clock()]).encode())

    async def accepted(self) -> list[Update]:
        """What was accepted and is not done with, in its order. Raises Unavailable."""
        found: list[Update] = []
        for entry in await self._store.entries(f"{_INBOX}."):
            chat_id, text, message_id = json.loads(entry.value)
            number = int(entry.key.partition(".")[2])
            found.append(Update(update_id=number, chat_id=int(chat_id), text=str(text), message_id=int(message_id)))
        return sorted(found, key=lambda update: update.update_id)

    async def handled(self, chat_id: int) -> Handled:
        """How far a chat's answers are. Raises Unavailable."""
        entry = await self._store.get(f"chat.{chat_id}")
        if entry is None:
            return Handled()
        update_id, pages, message_id, at = json.loads(entry.value)
        if self._clock() - at >= _NUMBERED_SECONDS:
            return Handled(message_id=int(message_id))
        return Handled(update_id=int(update_id), pages=int(pages), message_id=int(message_id))

    async def sent(self, update: Update, pages: int, *, message_id: int) -> None:
        """So many pages of the answer to a message were sent, -1: all, the newest with this id. Raises Unavailable."""
        kept = [update.update_id, pages, message_id, self._clock()]
        await self._store.put(f"chat.{update.chat_id}", json.dumps(kept).encode())

    async def done(self, update: Update) -> None:
        """A message is done with. Raises Unavailable."""
        await self._store.delete(_key(update))

    async def refused(self) -> set[int]:
        """The chats that were told that they are not served. Raises Unavailable."""
        if self._refused is None:
            entry = await self._store.get(_REFUSED)
            self._refused = set(json.loads(entry.value)) if entry is not None else set[int]()
        return self._refused

    async def refuse(self, chat_id: int) -> None:
        """One more was told. Raises Unavailable."""
        known = await self.refused()
        known.add(chat_id)
        await self._store.put(_REFUSED, json.dumps(sorted(known)).encode())


def _key(update: Update) -> str:
    return f"{_INBOX}.{update.update_id:020d}"
