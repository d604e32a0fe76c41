"""Buckets in the layouts that every NATS client reads: small values by key, large content named by its digest.

The ids of an object's chunks begin with their tenant. Descriptions lie under a hash of their names, as that layout has
it, so a host of agents asks the orchestrators for them and gives them its own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import (
    BLOBS,
    BLOBS_BUCKET,
    EXPECTED_SEQUENCE,
    MESSAGE_ID,
    PublishRefused,
    StoredMessage,
    chunk_prefix,
)
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.requests import Ask, ask, asked_messages
from swe_ai_fleet.adapters.jetstream.streams import last_message
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import Fenced, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from swe_ai_fleet.ports import KeyValueChange, KeyValueEntry

OPERATION = "KV-Operation"
_PASSES = 20
"""Over a bucket that others change all the time."""
_KEY = re.compile(r"[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*")
CHUNK_BYTES = 128 * 1024
_OFF_LOOP_BYTES = 1024 * 1024
_ROLLUP = "Nats-Rollup"
_OF_SUBJECT = "sub"
_OBJECT_ID = re.compile(r"([A-Za-z0-9%_~-]+\.)?[A-Za-z0-9]+")


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
        message = await last_message(self._connection, self._stream, self._subject(key), timeout=self._timeout)
        if message is None or OPERATION in message.headers:
            return None
        return KeyValueEntry(key=key, value=message.data, revision=message.sequence)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        subject = self._subject(key)
        headers: dict[str, str] = {}
        if revision is not None:
            headers[EXPECTED_SEQUENCE] = str(await self._expected(key, revision))
        try:
            ack = await self._connection.publish(subject, value, headers=headers, timeout=self._timeout)
        except PublishRefused as refusal:
            now = await self.get(key)
            if refusal.unanswered and now is not None and now.value == value:
                return now.revision
            raise Fenced(f"{key} was changed by another process") from refusal
        return ack.sequence

    async def delete(self, key: str) -> None:
        if await self.get(key) is None:
            return
        await self._connection.publish(self._subject(key), b"", headers={OPERATION: "DEL"}, timeout=self._timeout)

    async def entries(self, prefix: str = "") -> tuple[KeyValueEntry, ...]:
        entries: dict[str, KeyValueEntry] = {}
        seen = until = passes = 0
        clock = asyncio.get_running_loop().time
        # A value that is replaced while this reads lies behind what there was to read at first. One reader goes on to
        # it: a new one each time would find no more than the first of the values that are replaced in turn.
        try:
            async with asyncio.timeout(self._timeout) as limit, aclosing(self.changes(follow=True)) as changes:
                async for change in changes:
                    limit.reschedule(clock() + self._timeout)
                    if change is not None:
                        seen = change.revision
                        if change.value is None:
                            entries.pop(change.key, None)
                        elif change.key.startswith(prefix):
                            entries[change.key] = KeyValueEntry(key=change.key, value=change.value, revision=seen)
                    if change is None or (passes and seen >= until):
                        until = await self._newest()
                        passes += 1
                        if until <= seen or passes > _PASSES:
                            break
        except TimeoutError:
            # What was the newest may have got too old meanwhile.
            if await self._newest() > seen:
                raise Unavailable(f"NATS does not answer: {self._bucket} could not be read to its end") from None
        return tuple(entries[key] for key in sorted(entries))

    async def changes(
        self, *, from_revision: int = 0, follow: bool = False
    ) -> AsyncGenerator[KeyValueChange | None, None]:
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

    async def _newest(self) -> int:
        newest = await last_message(self._connection, self._stream, f"$KV.{self._bucket}.>", timeout=self._timeout)
        return newest.sequence if newest is not None else 0

    async def _expected(self, key: str, revision: int) -> int:
        """The sequence to expect; a removed value's marker stands where there is none."""
        if revision:
            return revision
        last = await last_message(self._connection, self._stream, self._subject(key), timeout=self._timeout)
        return last.sequence if last is not None and OPERATION in last.headers else 0

    def _subject(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise InvalidRequest(f"{key[:64]!r} cannot be a key")
        return f"$KV.{self._bucket}.{key}"


class JetStreamBlobs:
    """A `BlobStore`."""

    def __init__(self, connection: Connection, *, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout

    async def put(self, tenant: str, execution_id: str, data: bytes, media_type: str, *, place: str = "") -> BlobRef:
        """Store content unless it already exists; what a `place` held is gone then, at once.

        Raises ResourceExhausted, Unavailable.
        """
        digest = await _sha256(data)
        name = f"{tenant}/{execution_id}/{place or digest.hex()}"
        ref = BlobRef(name=name, digest=digest.hex(), size=len(data), media_type=media_type)
        info = None if place else await self.info(name)
        if info is not None and not info.get("deleted") and info.get("size") == len(data):
            return ref
        attempt = secrets.token_hex(11)
        object_id = f"{chunk_prefix(tenant)}{_object_id(name) if place else attempt}"
        chunks = range(0, len(data), CHUNK_BYTES)
        for number, offset in enumerate(chunks):
            # The first chunk takes the place of all that were there.
            replacing = {_ROLLUP: _OF_SUBJECT} if place and not number else {}
            await self._publish(
                self._chunk_subject(object_id),
                data[offset : offset + CHUNK_BYTES],
                {MESSAGE_ID: f"{attempt}/{number}", **replacing},
            )
        meta = {
            "name": name,
            "bucket": BLOBS_BUCKET,
            "nuid": object_id,
            "size": len(data),
            "chunks": len(chunks),
            "digest": f"SHA-256={base64.urlsafe_b64encode(digest).decode()}",
            "mtime": datetime.now(UTC).isoformat(),
            "headers": {"Content-Type": [media_type]},
            "options": {"max_chunk_size": CHUNK_BYTES},
        }
        # The description comes last: what it names is whole.
        await self._describe(meta)
        return ref

    async def discard(self, ref: BlobRef) -> None:
        """Leave an empty object where a place held something. Raises ResourceExhausted, Unavailable.

        Nothing but the right to publish is needed for it, which every writer has.
        """
        tenant = ref.name.split("/")[0]
        object_id = f"{chunk_prefix(tenant)}{_object_id(ref.name)}"
        meta = {
            "name": ref.name,
            "bucket": BLOBS_BUCKET,
            "nuid": object_id,
            "size": 0,
            "chunks": 0,
            "mtime": datetime.now(UTC).isoformat(),
            "deleted": True,
        }
        # The description first: what it names is whole, or it names nothing.
        await self._describe(meta)
        await self._clear(object_id)

    async def get(self, ref: BlobRef) -> bytes:
        info = await self.info(ref.name)
        if info is None or info.get("deleted"):
            raise NotFound(f"no blob {ref.name}")
        stored = self._chunks(ref, str(info["nuid"])) if info["size"] else None
        parts: list[bytes] = []
        if stored is not None:
            async with aclosing(stored):
                parts.extend([chunk.data async for chunk in stored if chunk is not None])
        data = b"".join(parts)
        if (await _sha256(data)).hex() != ref.digest:
            raise NotFound(f"blob {ref.name} is damaged: {len(data)} of {ref.size} bytes")
        return data

    async def info(self, name: str) -> dict[str, Any] | None:
        """The description under a name. Raises Unavailable."""
        if self._connection.is_host:
            return (await ask(self._connection, Ask.INFO, *_place(name), {"name": name}))["info"]
        meta = await last_message(self._connection, BLOBS, self._meta_subject(name), timeout=self._timeout)
        return None if meta is None else json.loads(meta.data)

    async def content(self, name: str, start: int) -> AsyncGenerator[StoredMessage | None, None]:
        """The chunks under a name from a sequence on; for a host, which reads none itself. Raises Unavailable."""
        info = await self.info(name)
        if info is not None and info.get("size"):
            async with aclosing(self._messages(str(info["nuid"]), start=start)) as stored:
                async for chunk in stored:
                    yield chunk

    async def describe(self, meta: dict[str, Any]) -> None:
        """Put a description in the place of the one before it; of a place, chunks that lie elsewhere go.

        Raises ResourceExhausted, Unavailable, PreconditionFailed for chunks that can't be anywhere.
        """
        name, object_id = str(meta["name"]), str(meta["nuid"])
        self._chunk_subject(object_id)
        before = await self.info(name) if object_id.endswith(f".{_object_id(name)}") else None
        await self._publish(
            self._meta_subject(name),
            json.dumps(meta).encode(),
            {MESSAGE_ID: secrets.token_hex(11), _ROLLUP: _OF_SUBJECT},
        )
        if before is not None and before.get("size") and before["nuid"] != object_id:
            await self._clear(str(before["nuid"]))

    async def _describe(self, meta: dict[str, Any]) -> None:
        if self._connection.is_host:
            await ask(self._connection, Ask.DESCRIBE, *_place(meta["name"]), {"meta": meta})
        else:
            await self.describe(meta)

    async def _clear(self, object_id: str) -> None:
        """Leave one empty chunk where there were others."""
        await self._publish(
            self._chunk_subject(object_id), b"", {MESSAGE_ID: secrets.token_hex(11), _ROLLUP: _OF_SUBJECT}
        )

    def _chunks(self, ref: BlobRef, object_id: str) -> AsyncGenerator[StoredMessage | None, None]:
        if self._connection.is_host:
            return asked_messages(self._connection, Ask.CONTENT, *_place(ref.name), {"name": ref.name})
        return self._messages(object_id)

    def _messages(self, object_id: str, *, start: int = 1) -> AsyncGenerator[StoredMessage | None, None]:
        return messages(
            self._connection,
            BLOBS,
            self._chunk_subject(object_id),
            start=start,
            follow=False,
            timeout=self._timeout,
        )

    def _chunk_subject(self, object_id: str) -> str:
        # Whoever describes a blob says it: it must be nothing but an id where it stands in a subject.
        if not _OBJECT_ID.fullmatch(object_id):
            raise PreconditionFailed(f"{object_id[:80]!r} is not an object id")
        return f"$O.{BLOBS_BUCKET}.C.{object_id}"

    def _meta_subject(self, name: str) -> str:
        return f"$O.{BLOBS_BUCKET}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        await self._connection.publish(subject, payload, headers=headers, timeout=self._timeout)


def _place(name: str) -> tuple[str, str]:
    """The tenant and the execution that a name begins with."""
    tenant, execution_id, _ = name.split("/", 2)
    return tenant, execution_id


def _object_id(name: str) -> str:
    """What the chunks of a place are published under, whoever writes there."""
    return hashlib.sha256(name.encode()).hexdigest()[:22]


async def _sha256(data: bytes) -> bytes:
    if len(data) < _OFF_LOOP_BYTES:
        return hashlib.sha256(data).digest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).digest())
