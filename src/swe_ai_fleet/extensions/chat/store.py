"""Stores of chats between messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.extensions.chat.session import Session
from swe_ai_fleet.ports import KeyValue

CHATS_BUCKET = "CHATS"
MAX_SESSION_BYTES = 512 * 1024
_CARD = "card"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSession:
    """A stored session, and the revision that a replacement names."""

    session: Session
    revision: int


class ChatStore(Protocol):
    """Stores sessions by tenant and id; a replacement names the revision that was read."""

    async def get(self, tenant: str, session_id: str) -> KeptSession | None:
        """The session as it was put last; None for an unknown one. Raises Unavailable."""
        ...

    async def put(self, session: Session, *, revision: int) -> int:
        """Store it on a revision (0: only where there is none); returns the new one. Raises Fenced, Unavailable."""
        ...

    async def delete(self, tenant: str, session_id: str) -> None:
        """Delete it; nothing happens where there is none. Raises Unavailable."""
        ...

    async def listed(self, tenant: str) -> tuple[Session, ...]:
        """The cards of all of a tenant's, the one that was spoken to last first. Raises Unavailable."""
        ...


class KeyValueChats:
    """A `ChatStore` in a key-value store, the same for every replica.

    The card of a session is stored beside it, so that a list need not read whole sessions.
    """

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    async def get(self, tenant: str, session_id: str) -> KeptSession | None:
        """The session as it was put last; None for an unknown one. Raises Unavailable."""
        entry = await self._store.get(_key(tenant, session_id))
        if entry is None:
            return None
        return KeptSession(session=from_json(Session, entry.value), revision=entry.revision)

    async def put(self, session: Session, *, revision: int) -> int:
        """Store it on a revision; returns the new one. Raises Fenced, Unavailable."""
        key = _key(session.tenant, session.session_id)
        stored = await self._store.put(key, encoded(session), revision=revision)
        if not session.busy_until or not revision:
            await self._store.put(f"{_CARD}.{key}", to_json(session.card))
        return stored

    async def delete(self, tenant: str, session_id: str) -> None:
        """Delete it. Raises Unavailable."""
        await self._store.delete(_key(tenant, session_id))
        await self._store.delete(f"{_CARD}.{_key(tenant, session_id)}")

    async def listed(self, tenant: str) -> tuple[Session, ...]:
        """The cards of all of a tenant's, the one that was spoken to last first. Raises Unavailable."""
        entries = await self._store.entries(f"{_CARD}.{_key(tenant, '')}")
        return newest_first(from_json(Session, entry.value) for entry in entries)


def encoded(session: Session) -> bytes:
    """The session as JSON, without its oldest turns where it is too long, and at last without named things."""
    data = to_json(session)
    while len(data) > MAX_SESSION_BYTES and len(session.turns) > 1:
        session = replace(session, turns=session.turns[max(1, len(session.turns) // 4) :])
        data = to_json(session)
    if len(data) > MAX_SESSION_BYTES:
        session = replace(
            session,
            turns=tuple(replace(turn, messages=(), tables=(), references=()) for turn in session.turns),
            things=(),
        )
        data = to_json(session)
    return data


def newest_first(sessions: Iterable[Session]) -> tuple[Session, ...]:
    """Sessions by their last use, the newest first."""
    return tuple(sorted(sessions, key=lambda chat: (chat.updated_at or chat.started_at, chat.session_id), reverse=True))


def _key(tenant: str, session_id: str) -> str:
    return f"{tenant}.{session_id}"
