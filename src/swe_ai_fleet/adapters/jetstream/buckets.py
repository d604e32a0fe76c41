"""Key-value buckets and the object store, in the layouts that every NATS client reads.

The ids of an object's chunks begin with their tenant, so a host's permissions cover its own chunks. The layout stores
an object's description under a hash of its name, which no permission can cover: a host reads and writes descriptions
through the orchestrators.
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
from swe_ai_fleet.adapters.jetstream.reader import messages, newest_sequence
from swe_ai_fleet.adapters.jetstream.requests import Ask, ask, asked_messages
from swe_ai_fleet.adapters.jetstream.streams import last_message
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import Fenced, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from swe_ai_fleet.ports import KeyValueChange, KeyValueEntry

OPERATION = "KV-Operation"
_PASSES = 20
"""The most passes of one listing over a bucket that keeps changing."""
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
        # A value that is replaced during the reading moves behind the end that was read at first. The same reader
        # continues to it: with a new one each time, values that are replaced in turn would be missed.
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
            # The newest value may have expired meanwhile.
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
        return await newest_sequence(self._connection, self._stream, f"$KV.{self._bucket}.>", timeout=self._timeout)

    async def _expected(self, key: str, revision: int) -> int:
        """The sequence to expect for a revision; for revision 0 the marker of a deletion counts as no value."""
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
        """Store content unless it already exists; under a `place` it replaces the former content at once.

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
            # The first chunk replaces all former ones.
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
        # The description comes last, so that the content it names is complete.
        await self._describe(meta)
        return ref

    async def discard(self, ref: BlobRef) -> None:
        """Replace the content of a place by an empty object. Raises ResourceExhausted, Unavailable.

        It needs only the right to publish, which every writer has.
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
        # The description comes first, so that it never names content that is partly removed.
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
        """The description of an object, None where it has none. Raises Unavailable."""
        if self._connection.is_host:
            return (await ask(self._connection, Ask.INFO, *_owner(name), {"name": name}))["info"]
        meta = await last_message(self._connection, BLOBS, self._meta_subject(name), timeout=self._timeout)
        return None if meta is None else json.loads(meta.data)

    async def content(self, name: str, start: int) -> AsyncGenerator[StoredMessage | None, None]:
        """An object's chunks from a sequence on, read on behalf of a host. Raises Unavailable."""
        info = await self.info(name)
        if info is not None and info.get("size"):
            async with aclosing(self._messages(str(info["nuid"]), start=start)) as stored:
                async for chunk in stored:
                    yield chunk

    async def describe(self, meta: dict[str, Any]) -> None:
        """Store a description in place of the former one; a place's former chunks under another id are cleared.

        Raises ResourceExhausted, Unavailable, PreconditionFailed for an id that cannot be one of chunks.
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
            await ask(self._connection, Ask.DESCRIBE, *_owner(meta["name"]), {"meta": meta})
        else:
            await self.describe(meta)

    async def _clear(self, object_id: str) -> None:
        """Replace an object's chunks by one empty chunk."""
        await self._publish(
            self._chunk_subject(object_id), b"", {MESSAGE_ID: secrets.token_hex(11), _ROLLUP: _OF_SUBJECT}
        )

    def _chunks(self, ref: BlobRef, object_id: str) -> AsyncGenerator[StoredMessage | None, None]:
        if self._connection.is_host:
            return asked_messages(self._connection, Ask.CONTENT, *_owner(ref.name), {"name": ref.name})
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
        # The id comes from the caller's description and becomes part of a subject.
        if not _OBJECT_ID.fullmatch(object_id):
            raise PreconditionFailed(f"{object_id[:80]!r} is not an object id")
        return f"$O.{BLOBS_BUCKET}.C.{object_id}"

    def _meta_subject(self, name: str) -> str:
        return f"$O.{BLOBS_BUCKET}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        await self._connection.publish(subject, payload, headers=headers, timeout=self._timeout)


def _owner(name: str) -> tuple[str, str]:
    """The tenant and the execution of a blob, the first two parts of its name."""
    tenant, execution_id, _ = name.split("/", 2)
    return tenant, execution_id


def _object_id(name: str) -> str:
    """The id of the chunks of a place, the same for every writer."""
    return hashlib.sha256(name.encode()).hexdigest()[:22]


async def _sha256(data: bytes) -> bytes:
    if len(data) < _OFF_LOOP_BYTES:
        return hashlib.sha256(data).digest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).digest())
