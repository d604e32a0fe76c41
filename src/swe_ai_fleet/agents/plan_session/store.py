"""Where sessions are kept: in key-value stores that every replica shares."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from contextlib import suppress
from dataclasses import dataclass

import structlog

from swe_ai_fleet.agents.plan_session.session import PlanSession, SessionCard
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import Fenced, FleetError, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.ports import KeyValue, KeyValueEntry

SESSIONS_BUCKET = "PLAN_SESSIONS"
PARTS_BUCKET = "PLAN_SESSION_PARTS"
PART_BYTES = 512 * 1024
"""Of one value: NATS takes messages of a megabyte unless it is told otherwise."""
MAX_SESSION_BYTES = 32 * 1024 * 1024
"""Of a whole session as JSON."""
_READS = 5
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What stands under a session's key: its card, its revision, and where the rest of it is.

    The rest is JSON, deflated, in `parts` pieces under `<key>.<place>.<number>` of another store; `size` is that of
    the JSON in bytes.
    """

    card: SessionCard
    revision: int
    place: str
    parts: int
    size: int


class KeyValueSessions:
    """The sessions of a tenant, for all replicas of a service.

    Heads and bodies lie in stores of their own, so that a list reads the heads alone. A body is written before the head
    that names it and under a name of its own, so whoever reads a head finds what belongs to it.

    Args:
        heads: The bucket `PLAN_SESSIONS`.
        parts: The bucket `PLAN_SESSION_PARTS`; values must live as long as in the other.
        tenant: Whose sessions they are.
    """

    def __init__(self, heads: KeyValue, parts: KeyValue, *, tenant: str) -> None:
        self._heads = heads
        self._parts = parts
        self._tenant = tenant

    async def get(self, session_id: str) -> PlanSession | None:
        """The session as it was put last; None for an unknown one. Raises PreconditionFailed, Unavailable."""
        key = self._key(session_id)
        for _ in range(_READS):
            entry = await self._heads.get(key)
            if entry is None:
                return None
            head = _head(entry)
            read = [await self._parts.get(name) for name in _names(key, head)]
            parts = [part.value for part in read if part is not None]
            if len(parts) == head.parts:
                return await asyncio.to_thread(_unpacked, parts, head.size)
            # Somebody put it anew between the two reads, and took the old body away.
        raise Unavailable(f"the session {session_id} could not be read completely")

    async def put(self, session: PlanSession) -> None:
        """Keep it. Raises PreconditionFailed unless its revision is one more than that of the one kept (0: none),
        ResourceExhausted, Unavailable."""
        key = self._key(session.session_id)
        entry = await self._heads.get(key)
        before = _head(entry) if entry is not None else None
        if session.revision != (before.revision if before is not None else 0) + 1:
            raise _changed_meanwhile()
        size, packed = await asyncio.to_thread(_packed, session)
        head = Head(
            card=session.card, revision=session.revision, place=secrets.token_hex(8), parts=len(packed), size=size
        )
        names = _names(key, head)
        try:
            for name, part in zip(names, packed, strict=True):
                await self._parts.put(name, part, revision=0)
            await self._heads.put(key, to_json(head), revision=entry.revision if entry is not None else 0)
        except Fenced as fault:
            await self._forget(names)
            raise _changed_meanwhile() from fault
        if before is not None:
            await self._forget(_names(key, before))

    async def listed(self) -> tuple[SessionCard, ...]:
        """The cards of all, the one that was put last first. Raises Unavailable."""
        entries = await self._heads.entries(f"{self._tenant}.")
        cards: list[SessionCard] = []
        for entry in entries:
            try:
                cards.append(_head(entry).card)
            except PreconditionFailed:
                # One that cannot be read must not hide all others.
                _log.error("plan_session.unreadable", session=entry.key)
        return tuple(sorted(cards, key=lambda card: (card.updated_at, card.session_id), reverse=True))

    def _key(self, session_id: str) -> str:
        return f"{self._tenant}.{session_id}"

    async def _forget(self, names: list[str]) -> None:
        for name in names:
            # What stays behind expires by itself.
            with suppress(FleetError):
                await self._parts.delete(name)


def _head(entry: KeyValueEntry) -> Head:
    try:
        return from_json(Head, entry.value)
    except ValueError as fault:
        raise _unreadable() from fault


def _changed_meanwhile() -> PreconditionFailed:
    return PreconditionFailed("the session was changed by another process meanwhile", hint="reload it")


def _unreadable() -> PreconditionFailed:
    return PreconditionFailed(
        "the session cannot be read; a newer version may have written it",
        field="session_id",
        hint="start another session",
    )


def _names(key: str, head: Head) -> list[str]:
    return [f"{key}.{head.place}.{number}" for number in range(head.parts)]


def _packed(session: PlanSession) -> tuple[int, list[bytes]]:
    data = to_json(session)
    if len(data) > MAX_SESSION_BYTES:
        raise ResourceExhausted(
            f"the session is too long to store: {len(data)} bytes",
            field="session_id",
            hint=f"start another session; at most {MAX_SESSION_BYTES} bytes are stored",
        )
    packed = zlib.compress(data, level=3)
    return len(data), [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]


def _unpacked(parts: list[bytes], size: int) -> PlanSession:
    try:
        # Whatever the bucket holds, no more than was said is unpacked.
        data = zlib.decompressobj().decompress(b"".join(parts), max(1, min(size, MAX_SESSION_BYTES)))
        return from_json(PlanSession, data)
    except (ValueError, zlib.error) as fault:
        raise _unreadable() from fault
