"""Project knowledge as a stream of changes.

A story's changes go to one subject in the order of their versions, which the server enforces: each names the sequence
of the version before it as the expected last one. The record of an execution's work goes to a subject of that
execution, which takes one message only. A message carries one `Change` as JSON (UTF-8); its `Fleet-Version` header is
the version, its `Nats-Msg-Id` is unique to each call of `append`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import (
    CONTEXT_CHANGES,
    EXPECTED_SEQUENCE,
    MESSAGE_ID,
    PublishRefused,
    StoredMessage,
    change_subject,
    work_subject,
)
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.streams import last_message
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.context import Change, KnowledgeErased, StoredChange, WorkRecorded
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced

_VERSION = "Fleet-Version"
_ALL = ("context.changes.>", "context.work.>")

_log = structlog.get_logger(__name__)


class JetStreamChanges:
    """A `ChangeLog`."""

    def __init__(self, connection: Connection, *, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout

    async def append(self, change: Change) -> StoredChange:
        if isinstance(change.body, WorkRecorded):
            subject = work_subject(change.tenant, change.body.record.execution_id)
            exists = AlreadyExists(f"execution {change.body.record.execution_id} is already recorded")
            return await self._publish(subject, change, 0, exists)
        if isinstance(change.body, KnowledgeErased):
            subject = work_subject(change.tenant, change.body.execution_id or "_")
            last = await last_message(self._connection, CONTEXT_CHANGES, subject, timeout=self._timeout)
            if change.body.execution_id and last is not None and is_erased(last.data):
                return StoredChange(sequence=last.sequence, change=change)
            erased = AlreadyExists(f"{subject} was written meanwhile")
            return await self._publish(subject, change, last.sequence if last is not None else 0, erased)
        subject = change_subject(change.tenant, change.story_id)
        last = await last_message(self._connection, CONTEXT_CHANGES, subject, timeout=self._timeout)
        version = int(last.headers.get(_VERSION, "0")) if last is not None else 0
        stale = Fenced(f"version {change.version} is not the next of story {change.story_id}")
        if change.version != version + 1:
            raise stale
        return await self._publish(subject, change, last.sequence if last is not None else 0, stale)

    async def read(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredChange | None, None]:
        """The changes of all tenants from a sequence number on; with `follow` a None after those stored before.

        An unreadable change is logged and skipped: it must not hide all others. Raises NotFound, Unavailable.
        """
        stored = messages(
            self._connection,
            CONTEXT_CHANGES,
            *_ALL,
            start=from_sequence,
            follow=follow,
            timeout=self._timeout,
        )
        async with aclosing(stored):
            async for message in stored:
                if message is None:
                    if follow:
                        yield None
                    continue
                try:
                    change = from_json(Change, message.data)
                except ValueError as error:
                    _log.error("jetstream.unreadable_change", sequence=message.sequence, reason=str(error)[:500])
                else:
                    yield StoredChange(sequence=message.sequence, change=change)

    async def _publish(
        self, subject: str, change: Change, expected: int, taken: Fenced | AlreadyExists
    ) -> StoredChange:
        """Store a change if the subject's last sequence is the expected one. Raises `taken` where it is not."""
        message_id = secrets.token_hex(12)
        headers = {EXPECTED_SEQUENCE: str(expected), MESSAGE_ID: message_id, _VERSION: str(change.version)}
        try:
            ack = await self._connection.publish(subject, to_json(change), headers=headers, timeout=self._timeout)
        except PublishRefused as refusal:
            stored = await self._first_after(subject, expected) if refusal.unanswered else None
            if stored is None or stored.headers.get(MESSAGE_ID) != message_id:
                raise taken from refusal
            # It was stored and the answer lost; later changes may have followed it.
            return StoredChange(sequence=stored.sequence, change=change)
        return StoredChange(sequence=ack.sequence, change=change)

    async def _first_after(self, subject: str, sequence: int) -> StoredMessage | None:
        """The first message of a subject after a sequence."""
        stored = messages(
            self._connection,
            CONTEXT_CHANGES,
            subject,
            start=sequence + 1,
            follow=False,
            timeout=self._timeout,
        )
        async with aclosing(stored):
            return await anext(stored, None)


def is_erased(data: bytes) -> bool:
    """Whether a message says that knowledge was erased."""
    return b"knowledge_erased" in data and isinstance(from_json(Change, data).body, KnowledgeErased)
