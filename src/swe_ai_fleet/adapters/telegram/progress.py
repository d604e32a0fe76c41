"""How far a bot is, in a key-value store: nothing else of it outlives its process."""

from __future__ import annotations

import json
from dataclasses import dataclass

from swe_ai_fleet.adapters.telegram.api import Update
from swe_ai_fleet.ports import KeyValue

TELEGRAM_BUCKET = "TELEGRAM"
_OFFSET, _REFUSED, _INBOX = "offset", "refused", "inbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """The last message of a chat that was begun with, and how many pages of its answer were sent; -1: all of them."""

    update_id: int = 0
    pages: int = -1


class BotProgress:
    """What was accepted, what was answered, who was refused.

    Args:
        store: The bucket `TELEGRAM`.
    """

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self._refused: set[int] | None = None

    async def offset(self) -> int:
        """The number of the first update that was not accepted yet. Raises Unavailable."""
        entry = await self._store.get(_OFFSET)
        return int(entry.value) if entry is not None else 0

    async def accept(self, updates: list[Update], offset: int) -> None:
        """Keep messages, and then that Telegram may forget everything before a number. Raises Unavailable."""
        for update in updates:
            await self._store.put(_key(update), json.dumps([update.chat_id, update.text]).encode())
        await self._store.put(_OFFSET, str(offset).encode())

    async def accepted(self) -> list[Update]:
        """What was accepted and is not done with, in its order. Raises Unavailable."""
        found: list[Update] = []
        for entry in await self._store.entries(f"{_INBOX}."):
            chat_id, text = json.loads(entry.value)
            found.append(Update(update_id=int(entry.key.partition(".")[2]), chat_id=int(chat_id), text=str(text)))
        return sorted(found, key=lambda update: update.update_id)

    async def handled(self, chat_id: int) -> Handled:
        """How far a chat's answers are. Raises Unavailable."""
        entry = await self._store.get(f"chat.{chat_id}")
        if entry is None:
            return Handled()
        update_id, pages = json.loads(entry.value)
        return Handled(update_id=int(update_id), pages=int(pages))

    async def sent(self, update: Update, pages: int) -> None:
        """So many pages of the answer to a message were sent; -1: all of them. Raises Unavailable."""
        await self._store.put(f"chat.{update.chat_id}", json.dumps([update.update_id, pages]).encode())

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
