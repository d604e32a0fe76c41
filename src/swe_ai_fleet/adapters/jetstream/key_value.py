"""Small values by key, in the layout of a JetStream key-value bucket that every NATS client reads."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.faults import Refused
from swe_ai_fleet.adapters.jetstream.messages import EXPECTED_SEQUENCE, StoredMessage
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.streams import last_message
from swe_ai_fleet.domain.errors import Fenced, InvalidRequest
from swe_ai_fleet.ports import KeyValueChange, KeyValueEntry

OPERATION = "KV-Operation"
_PASSES = 20
"""Over a bucket that others change all the time."""
_KEY = re.compile(r"[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*")


def bucket_stream(bucket: str) -> str:
    """The stream behind a bucket, as every NATS client names it."""
    return f"KV_{bucket}"


class JetStreamKeyValue:
    """A `KeyValue` in one bucket."""

    def __init__(self, connection: Connection, bucket: str, *, timeout: float) -> None:
        self._connection = connection
        self._bucket = bucket
        self._stream = bucket_stream(bucket)
        self._timeout = timeout

    async def get(self, key: str) -> KeyValueEntry | None:
        """The value, None where there is none (any more). Raises InvalidRequest, Unavailable."""
        message = await last_message(self._connection, self._stream, self._subject(key), timeout=self._timeout)
        return None if message is None else self._entry(message)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        """Store a value; its revision. With a `revision` only on that one (0: only where there is none).

        Raises Fenced where somebody else changed it, InvalidRequest, ResourceExhausted, Unavailable.
        """
        subject = self._subject(key)
        headers: dict[str, str] = {}
        if revision is not None:
            headers[EXPECTED_SEQUENCE] = str(await self._expected(key, revision))
        try:
            ack = await self._connection.publish(subject, value, headers=headers, timeout=self._timeout)
        except Refused as refusal:
            now = await self.get(key)
            if refusal.unanswered and now is not None and now.value == value:
                return now.revision
            raise Fenced(f"{key} was changed by another process") from refusal
        return ack.sequence

    async def delete(self, key: str) -> None:
        """Remove a value; nothing happens where there is none. Raises InvalidRequest, Unavailable."""
        if await self.get(key) is None:
            return
        await self._connection.publish(self._subject(key), b"", headers={OPERATION: "DEL"}, timeout=self._timeout)

    async def entries(self, prefix: str = "") -> tuple[KeyValueEntry, ...]:
        """Everything under keys that begin so, by key. Raises Unavailable."""
        entries: dict[str, KeyValueEntry] = {}
        seen = 0
        # A value that is replaced while this reads lies behind what there was to read at first.
        everything = f"$KV.{self._bucket}.>"
        for _ in range(_PASSES):
            newest = await last_message(self._connection, self._stream, everything, timeout=self._timeout)
            if newest is None or newest.sequence <= seen:
                break
            async with aclosing(self.changes(from_revision=seen + 1)) as changes:
                async for change in changes:
                    if change is None:
                        continue
                    seen = change.revision
                    if change.value is None:
                        entries.pop(change.key, None)
                    elif change.key.startswith(prefix):
                        entries[change.key] = KeyValueEntry(key=change.key, value=change.value, revision=seen)
        return tuple(entries[key] for key in sorted(entries))

    async def changes(
        self, *, from_revision: int = 0, follow: bool = False
    ) -> AsyncGenerator[KeyValueChange | None, None]:
        """What was stored and removed from a revision on, the last of each key; with `follow` without an end.

        With `follow` a None is yielded once everything stored before the call has been. Raises Unavailable.
        """
        stored = messages(
            self._connection,
            self._stream,
            f"$KV.{self._bucket}.>",
            start=from_revision,
            follow=follow,
            timeout=self._timeout,
        )
        async with aclosing(stored):
            async for message in stored:
                if message is not None:
                    removed = OPERATION in message.headers
                    key = message.subject.removeprefix(f"$KV.{self._bucket}.")
                    yield KeyValueChange(key=key, value=None if removed else message.data, revision=message.sequence)
                elif follow:
                    yield None

    async def _expected(self, key: str, revision: int) -> int:
        """The sequence to expect; a removed value's marker stands where there is none."""
        if revision:
            return revision
        last = await last_message(self._connection, self._stream, self._subject(key), timeout=self._timeout)
        return last.sequence if last is not None and OPERATION in last.headers else 0

    def _entry(self, message: StoredMessage) -> KeyValueEntry | None:
        if OPERATION in message.headers:
            return None
        key = message.subject.removeprefix(f"$KV.{self._bucket}.")
        return KeyValueEntry(key=key, value=message.data, revision=message.sequence)

    def _subject(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise InvalidRequest(f"{key[:64]!r} cannot be a key")
        return f"$KV.{self._bucket}.{key}"
